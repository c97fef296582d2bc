package balancer

import (
	"context"

	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// Balancer is a kind of load balancer that a workload cluster may have.
type Balancer interface {
	// Name is what people call it.
	Name() string
	// Pool is the name of the pool that has all blocks, unless each has one of its own.
	Pool() string
	// Watched are the kinds of its objects that bring news, and the namespace that they are in; none: they are of the cluster.
	Watched() (kinds []client.Object, namespace string)
	// Lists are empty lists of these kinds.
	Lists() []client.ObjectList
	// Missing is what is said of a cluster that does not have it.
	Missing() (reason, message string)
	// Observe reads a workload cluster: Services from one cache, the load balancer's objects from another. A cache of a kind
	// that was taken away shows none of it, so none is read live.
	Observe(ctx context.Context, services, objects, live client.Reader) (Observed, error)
	// Empty tells what keeps a pool that serves no new Services from being taken away: nothing, if no Service has an address
	// of its range any more. It reads live.
	Empty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (why string, err error)
	// LetGo tells what a workload cluster still does with a range that was taken away from it; nothing, if it has let go of
	// it. It reads live, and an error is no answer. What was about to be written at that moment is not seen: who gives a range
	// away asks twice, some time apart.
	LetGo(ctx context.Context, live client.Reader, r netipx.IPRange) (why string, err error)
}

// Observed is what a workload cluster has.
type Observed interface {
	// Installed reports whether the load balancer's kinds exist. Without them there are Services and nothing else.
	Installed() bool
	// Shows reports whether there is a pool of this name that shows blocks.
	Shows(name string) bool
	// Assess says what becomes of the Services when the cluster is shown these pools.
	Assess(Outlook) elastic.Assessment
	// Unread says which pool cannot be read, and why; empty: all can. What the cluster lacks is not known then.
	Unread() string
	// Foreign says which pool of somebody else has one of these names, and what to do; empty: none has.
	Foreign(names ...string) string
	// ForeignAdvertisement says that somebody else's object keeps the pools that show blocks from being announced; empty: it
	// is not so.
	ForeignAdvertisement(shown []elastic.Desired) string
	// Changes decides what is to be written so that the cluster is shown these pools. Those of other names and without our
	// label are left alone. No pool is made for a block that is being taken away: a write that was decided upon earlier, and
	// comes late, would show it again.
	Changes(want []elastic.Desired) Changes
	// Unplaced says why a Service waits although there is room for it; empty: nobody knows. It reads live.
	Unplaced(ctx context.Context, live client.Reader, s *elastic.Service) (why string, err error)
}

// Outlook is what a workload cluster is to be shown, and what it may get besides.
type Outlook struct {
	Pools []elastic.Desired
	// Grows is the name of the pool that growth is added to; none: each block is a pool of its own.
	Grows string
	// Families of which there can be more.
	Families [2]bool
	// Class of the Services that are served, as the ProviderConfig says it.
	Class string
}

// Changes are what is to be written so that a workload cluster is shown its blocks.
//
// A pool is written as it was observed, or not at all: the error is a conflict then. A write that was decided upon
// earlier, and comes late, would show a block again that was given back since.
type Changes interface {
	// OfPools reports whether the addresses that the workload cluster has are about to change.
	OfPools() bool
	// Show writes them.
	Show(ctx context.Context, tenant client.Client) error
}
