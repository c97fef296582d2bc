package allocator

import (
	"fmt"
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// firstWithheld names the first address of a range that the pool does not hand out, and why, to end a sentence.
func (p *memory) firstWithheld(r netipx.IPRange) string {
	if p.layout == nil {
		return ""
	}
	a, withheld := poolspec.FirstWithheld(p.layout, r)
	if !withheld {
		return ""
	}
	return fmt.Sprintf(": %s is not (%s)", a, poolspec.Withheld(p.base.PoolSpec(), p.layout, a))
}

// keptBy names the finalizers of others that keep a deleted IPAddress, to end a sentence.
func (a *attached) keptBy() string {
	if !a.deleting || len(a.others) == 0 {
		return ""
	}
	return "; it is kept by " + strings.Join(a.others, ", ") + ": ask whoever set that finalizer to remove it"
}

// nothingLeft says that the spec of the pool leaves nothing to hand out, empty where it leaves something.
func (p *memory) nothingLeft() string {
	if p.layout == nil || p.ledger.Counts().Total > 0 {
		return ""
	}
	return poolspec.NothingLeft(p.layout)
}
