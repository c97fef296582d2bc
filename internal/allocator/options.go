package allocator

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Options configures an Allocator: its clients, what it serves, and its timing. Safety depends on none of the times but
// Quarantine, which bounds how long a write of another manager may be in flight where no record shows it (R10).
type Options struct {
	// Client writes objects. Its reads may come from a cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Lister lists from the API server with consistent reads.
	Lister Lister
	// Recorder records events on pools and claimants.
	Recorder events.EventRecorder
	// Clock is the source of time.
	Clock clock.Clock
	// APITime converts a time of Clock to the clock of the API server, by which this manager records the times that the
	// next manager counts from. Nil means that both clocks are one.
	APITime func(time.Time) time.Time
	// ManagerID identifies this process among all managers that ever ran.
	ManagerID string
	// ManagementCluster is the UID of the namespace kube-system; empty if it could not be read.
	ManagementCluster string
	// WatchFilter, where set, is the value that the label cluster.x-k8s.io/watch-filter of a claim must have.
	WatchFilter string
	// Namespace, where set, is the only namespace that the manager watches.
	Namespace string
	// Elected reports whether only one manager is active, so that pools are taken over without waiting.
	Elected bool
	// Writers bounds the number of objects that are written at once.
	Writers int
	// Quarantine is how long a pool that has addresses but no record of an allocator grants nothing new (R10).
	Quarantine time.Duration
	// OrphanGrace is how long an IPAddress whose claim does not exist is kept.
	OrphanGrace time.Duration
	// ShrinkGrace is how long an unused block of a carved pool is kept.
	ShrinkGrace time.Duration
	// BlockNamespace is the namespace of the blocks of carved GlobalNetworkPools.
	BlockNamespace string
	// Shard selects the pools that this manager serves; it still observes the pools of others.
	Shard shard.Shard
	// WithoutLeases reports whether IPLeases are read, since they have addresses of the pools, but not served.
	WithoutLeases bool
	// InClusterPools reports whether the pools of the in-cluster provider are served, by the pools that mirror them.
	InClusterPools bool
	// MissingMirrorReason, where set, returns why the mirror of a name does not exist; empty means that it is no name
	// of a mirror.
	MissingMirrorReason func(ctx context.Context, key pools.Key) string
	// FindMachine finds the Machine of a claim by its owner references, for subnets that serve failure domains. Nil
	// means that none are served.
	FindMachine func(ctx context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error)
	// NodeQuota, where set, returns how many claims of a Cluster may have an address; false means any number.
	NodeQuota func(ctx context.Context, cluster types.NamespacedName) (limit int64, limited bool)
}

func (op *Options) now() time.Time { return op.Clock.Now() }

func withRequestTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, term.RequestTimeout)
}
