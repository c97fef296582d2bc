package grants

import (
	"fmt"
	"strings"

	"go4.org/netipx"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// FirstWithheld names the first address of a range that the pool does not hand out, and why, to end a sentence.
func (m *Memory) FirstWithheld(r netipx.IPRange) string {
	if m.Layout == nil {
		return ""
	}
	a, withheld := poolspec.FirstWithheld(m.Layout, r)
	if !withheld {
		return ""
	}
	return fmt.Sprintf(": %s is not (%s)", a, poolspec.Withheld(m.Base.PoolSpec(), m.Layout, a))
}

// KeptBy names the finalizers of others that keep a deleted IPAddress, to end a sentence.
func (a *Attached) KeptBy() string {
	if !a.Deleting || len(a.Others) == 0 {
		return ""
	}
	return "; it is kept by " + strings.Join(a.Others, ", ") + ": ask whoever set that finalizer to remove it"
}

// nothingLeft says that the spec of the pool leaves nothing to hand out, empty where it leaves something.
func (m *Memory) nothingLeft() string {
	if m.Layout == nil || m.Ledger.Counts().Total > 0 {
		return ""
	}
	return poolspec.NothingLeft(m.Layout)
}
