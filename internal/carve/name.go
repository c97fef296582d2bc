package carve

import (
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Name is the name of the n-th block of a pool: {pool}-{n}, cut where an object cannot have a name of that length.
func Name(pool string, n int) string {
	suffix := "-" + strconv.Itoa(n)
	return text.Shorten(pool, text.MaxName-len(suffix)) + suffix
}

// IsName reports whether Name makes a name for a pool: the manager has made the block. Labels do not tell, as anybody may
// change them.
func IsName(pool, name string) bool {
	n, err := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
	return err == nil && n > 0 && Name(pool, n) == name
}
