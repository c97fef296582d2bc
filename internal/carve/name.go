package carve

import (
	"strconv"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

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
