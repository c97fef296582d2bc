package balancer

import (
	"context"

	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// Balancer is a kind of load balancer that a workload cluster may have.
type Balancer interface {
	// Name returns its name for messages.
	Name() string
	// SharedPoolName returns the name of the pool that contains all blocks, unless each block has a pool of its own.
	SharedPoolName() string
	// WatchedKinds returns the kinds of its objects to watch, and their namespace, empty if they are cluster-scoped.
	WatchedKinds() (kinds []client.Object, namespace string)
	// WatchedLists returns empty lists of these kinds.
	WatchedLists() []client.ObjectList
	// MissingReason returns the reason and message of the condition of a Cluster in which it is not installed.
	MissingReason() (reason, message string)
	// RoleFile returns the file of this project with the permissions that the user of a kubeconfig needs in a workload
	// cluster.
	RoleFile() string
	// ObserveCluster reads a workload cluster: Services from one cache, the load balancer's objects from another. The
	// cache of a kind that was removed is empty, so if it has no objects, ObserveCluster reads them live.
	ObserveCluster(ctx context.Context, services, objects, live client.Reader) (ObservedCluster, error)
	// CheckPoolEmpty returns what keeps a pool that serves no new Services from being withdrawn, empty if no Service
	// has an address of its range any more. It reads live.
	CheckPoolEmpty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (why string, err error)
	// CheckReleased returns how a workload cluster still uses a range that was withdrawn from it, empty if the
	// cluster has released it. It reads live, and an error proves nothing. It does not see what was about to be
	// written at that moment: before a range is given to another Cluster, the caller must check twice,
	// ConfirmationInterval apart (FirstSeen.Confirm).
	CheckReleased(ctx context.Context, live client.Reader, r netipx.IPRange) (why string, err error)
}

// ObservedCluster is the observed state of a workload cluster.
type ObservedCluster interface {
	// IsInstalled reports whether the load balancer's kinds exist. Without them, only Services are observed.
	IsInstalled() bool
	// HasProjectedPool reports whether there is a pool of this name that contains blocks.
	HasProjectedPool(name string) bool
	// AssessServices predicts the outcome for the Services if the cluster has the desired pools.
	AssessServices(DesiredState) elastic.Assessment
	// UnreadablePool describes a pool that cannot be parsed; empty if there is none. The shortfall of the cluster is
	// unknown then.
	UnreadablePool() string
	// DescribeForeignPool describes a pool of another owner that has one of these names, and what to do; empty if
	// there is none.
	DescribeForeignPool(names ...string) string
	// DescribeForeignAdvertisement describes an object of another owner that keeps the pools of blocks from being
	// announced; empty if there is none.
	DescribeForeignAdvertisement(shown []elastic.DesiredPool) string
	// PlanChanges plans the writes after which the cluster has the desired pools. It leaves alone pools of other
	// names without our label. It creates no pool for a block that is being withdrawn: a write that was decided
	// earlier and lands late would project the block again.
	PlanChanges(want []elastic.DesiredPool) PoolChanges
	// DescribeUnplaced states why a Service waits although there is room for it; empty if that is unknown. It reads
	// live.
	DescribeUnplaced(ctx context.Context, live client.Reader, s *elastic.Service) (why string, err error)
}

// DesiredState is what to project to a workload cluster, and what the cluster may get in addition.
type DesiredState struct {
	Pools []elastic.DesiredPool
	// GrowthPool is the name of the pool that growth is added to, empty if each block has a pool of its own.
	GrowthPool string
	// GrowableFamilies reports for each family whether there can be more addresses of it.
	GrowableFamilies [2]bool
	// LoadBalancerClass is the class of the Services that are served, as the ProviderConfig sets it.
	LoadBalancerClass string
}

// PoolChanges are the writes that project blocks to a workload cluster.
//
// A pool is written with the resourceVersion that was observed; if it has changed since, the error is a conflict. A
// write that was decided earlier and lands late would otherwise project a block again that has been released since.
type PoolChanges interface {
	// HasPoolChanges reports whether the changes affect the addresses that the workload cluster has.
	HasPoolChanges() bool
	// ApplyChanges writes the changes.
	ApplyChanges(ctx context.Context, tenant client.Client) error
}
