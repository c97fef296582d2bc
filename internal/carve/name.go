package carve

import (
	"strconv"
	"strings"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// NameConflictTimeout is how long no block is requested under a name that another object has. After that the name is
// tried again, because the request of a lost block that is replaced depends on it.
const NameConflictTimeout = 5 * time.Minute

// BlockName returns the name of the n-th block of a pool: {pool}-{n}, cut to the maximum length of an object's name.
func BlockName(pool string, n int) string {
	suffix := "-" + strconv.Itoa(n)
	return text.ShortenText(pool, text.MaxNameLength-len(suffix)) + suffix
}

// IsBlockName reports whether BlockName returns this name for a pool and some n, which means that the manager created
// the block. Labels prove nothing, because any user may change them.
func IsBlockName(pool, name string) bool {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return err == nil && n > 0 && BlockName(pool, n) == name
}
