package nodeipam

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/workers"
)

// ClusterKey names the Cluster whose Nodes an allocator serves. The empty key is the manager's own cluster.
type ClusterKey = types.NamespacedName

// Lister lists with consistent reads: what it visits existed at some moment after the call.
type Lister interface {
	List(ctx context.Context, of client.Object, namespace string, visit func(client.Object)) (version string, err error)
}

// Options configure a ClusterAllocator.
type Options struct {
	ClusterKey ClusterKey
	// Client writes, Live reads the current state, and Lister lists it, all in the cluster of the Nodes.
	Client client.Client
	Live   client.Reader
	Lister Lister
	// ObjectProtector protects the objects that CIDRs are granted from. BlockClient reads and writes the blocks that
	// some of them have from pools; nil means that none of them has any.
	ObjectProtector ObjectProtector
	BlockClient     BlockClient
	// BlockGracePeriod is how long a block stays that no Node uses.
	BlockGracePeriod time.Duration
	// ManagerID is the ID of this process, which no other process ever had.
	ManagerID string
	// Elected reports whether the manager works only while it is the leader.
	Elected bool
	// Workers run the writes, together with those of other allocators.
	Workers *workers.Workers[ClusterKey]
	// Enqueue queues the cluster for a reconcile.
	Enqueue  func(ClusterKey)
	Recorder events.EventRecorder
	Now      func() time.Time
}
