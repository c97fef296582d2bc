package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// showTime is how long what was read of the blocks may be shown. What is created in the Cluster says nothing of what it was
// decided on, so that the Cluster's API server could refuse it: a manager that was paused would show a block that another
// one has given back meanwhile.
const showTime = 5 * time.Second

var errLate = errors.New("what was read is too old to be shown; it is read again")

// timely is a client that creates nothing later than showTime after since.
type timely struct {
	client.Client

	clock clock.PassiveClock
	since time.Time
}

func (t timely) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if term.Elapsed(t.since, t.clock.Now()) > showTime {
		return errLate
	}
	return t.Client.Create(ctx, obj, opts...)
}

// show brings the pools of the load balancer in line with the blocks. Before something is changed, what exists is read live: the watch
// may be behind what another manager has given the Cluster, or taken away and given back.
func (l *look) show(ctx context.Context, live client.Client, observed balancer.Observed, want []elastic.Desired, all allocations) (allocations, wait, error) {
	all, err := l.hold(ctx, all)
	if err != nil {
		return all, 0, client.IgnoreNotFound(err)
	}
	changes := observed.Changes(want)
	since := l.Clock.Now()
	if changes.OfPools() {
		changed, err := l.reread(ctx, slices.Concat(all, l.aside))
		if err != nil {
			return all, 0, err
		}
		if changed {
			return all, atOnce, nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, showTime)
	defer cancel()
	if err := changes.Show(ctx, timely{live, l.Clock, since}); err != nil {
		return all, 0, fmt.Errorf("showing Cluster %s its blocks: %w", l.key, err)
	}
	return all, 0, nil
}

// hold gives our finalizer to the blocks that the Cluster is about to be shown: they cannot be deleted without us then.
func (l *look) hold(ctx context.Context, all allocations) (allocations, error) {
	for _, a := range all {
		if _, granted := demand.RangeOf(a); !granted || tenancy.Projected(a) || tenancy.Leaving(a) {
			continue
		}
		is := a.DeepCopy()
		controllerutil.AddFinalizer(is, tenancy.ShownFinalizer(l.serving.By))
		if err := l.Client.Patch(ctx, is, guard.SinceRead(a)); err != nil {
			return all, err
		}
		l.Blocks.Observe(is)
		all = all.with(is)
	}
	return all, nil
}

// reread reads the Cluster's blocks live, and reports whether they are others than was known.
func (l *look) reread(ctx context.Context, known allocations) (changed bool, err error) {
	all, err := lookup.BlocksOf(ctx, l.Live, l.ref, "")
	if err != nil {
		return false, err
	}
	versions, exist := map[types.UID]string{}, map[types.UID]struct{}{}
	for _, a := range known {
		versions[a.UID] = a.ResourceVersion
	}
	for _, a := range all {
		exist[a.UID] = struct{}{}
		if a.Spec.Type == v1alpha1.LoadBalancerAllocation {
			changed = changed || versions[a.UID] != a.ResourceVersion
			l.Blocks.Observe(a)
		}
	}
	for _, a := range known {
		if _, does := exist[a.UID]; does {
			continue
		}
		current := &v1alpha1.IPAllocation{} // it may have lost its labels, and nothing else
		err := l.Live.Get(ctx, client.ObjectKeyFromObject(a), current)
		if apierrors.IsNotFound(err) || (err == nil && current.UID != a.UID) {
			changed = true
			l.Blocks.Forget(a)
		} else if err != nil {
			return false, fmt.Errorf("reading IPAllocation %s: %w", client.ObjectKeyFromObject(a), err)
		}
	}
	return changed, nil
}
