// Package tenant has the blocks of a Cluster follow the Services of its workload cluster: it shows them to its load
// balancer, asks for more, and gives back what nobody uses.
//
// A look at a Cluster reads (connect.go), has internal/demand decide, and writes (grow.go, show.go, mark.go, drain.go,
// report.go). Each step is given the blocks as they are, and returns them as they are after it.
package tenant

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/index"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/workloads"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/demand"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pace"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/shard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// A load balancer tells nobody when it is installed, so a Cluster without it is looked at this often.
const missingBackstop = 10 * time.Second

// Reconciler shows a Cluster's blocks to its load balancer, has them follow what its Services ask for, and gives none back
// before the Cluster has let go of it. What is decided is in internal/demand.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server.
	Live     client.Reader
	Recorder events.EventRecorder
	// Blocks of each Cluster; Synced reports whether all that exist were read.
	Blocks *index.Blocks
	Synced func() bool
	// Clusters connects to the workload clusters.
	Clusters clustercache.ClusterCache
	// NewCache makes what reads the load balancer of each.
	NewCache cache.NewCacheFunc
	// Writes delays those to the workload clusters that another writer reverts.
	Writes *pace.Writes
	Clock  clock.PassiveClock
	// Grace is how long a block that was added on demand stays without being used.
	Grace       time.Duration
	WatchFilter string
	// Shard says which Clusters are served.
	Shard shard.Shard

	controller controller.Controller
	notes      notes
	slow       workloads.Slow
	// answers are those of API servers that are not connected to.
	answers workloads.Answers
	// wake queues a Cluster.
	wake    func(client.ObjectKey)
	objects objectsOf
}

// look is one look at a Cluster.
type look struct {
	*Reconciler

	cluster *clusterv1.Cluster
	key     client.ObjectKey
	ref     v1alpha1.ClusterReference
	now     time.Time
	// serving says which load balancer is dealt with, aside are the blocks that wait for another one.
	serving tenancy.Serving
	aside   allocations
	// refused is what the API server of the Cluster refuses, where that is why nothing is known.
	refused error
	// delayed is how long until a condition may be written that another writer reverts; 0: none waits.
	delayed wait
}

// Reconcile brings one Cluster forward.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	if !r.Synced() {
		return reconcile.Result{RequeueAfter: 200 * time.Millisecond}, nil // without its blocks a Cluster would be shown none
	}
	cluster, key, shown := &clusterv1.Cluster{}, req.NamespacedName, r.Blocks.Projects(req.NamespacedName)
	if err := r.Client.Get(ctx, key, cluster); err != nil {
		if !apierrors.IsNotFound(err) {
			return reconcile.Result{}, err
		}
		r.notes.forget(key)
		r.slow.Forget(key)
		r.answers.Forget(key)
		r.objects.end(key)
		if !shown {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, r.endIfGone(ctx, key, r.Blocks.Of(key))
	}
	if !shown && !r.Blocks.Speaks(key) && cluster.Labels[v1alpha1.ProviderConfigLabel] == "" {
		r.objects.end(key)
		return reconcile.Result{}, nil // most Clusters are none of ours, however many blocks are for them
	}
	if guard.LeavesAlone(cluster, r.WatchFilter) {
		return reconcile.Result{}, nil
	}
	l := &look{
		Reconciler: r, cluster: cluster, key: key, ref: v1alpha1.ClusterReference{Namespace: key.Namespace, Name: key.Name}, now: r.Clock.Now(),
	}
	next, err := r.slow.Look(ctx, key, func(ctx context.Context) (time.Duration, error) {
		next, err := l.reconcile(ctx, r.Blocks.Of(key))
		return time.Duration(next), err
	})
	after, err := pace.Split(err)
	if apierrors.IsConflict(err) {
		return guard.Behind(), nil // what is there now is on its way to us
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: time.Duration(wait(next).or(wait(after)).or(l.delayed).or(wait(guard.ServedBackstop)))}, nil
}

func (l *look) reconcile(ctx context.Context, all allocations) (wait, error) {
	if guard.IsLeft(l.cluster) {
		return 0, l.end(ctx, all) // nobody else holds the Cluster: its machines are gone
	}
	config, err := l.config(ctx)
	if err != nil {
		return 0, err
	}
	if config == nil && !slices.ContainsFunc(all, tenancy.Projected) {
		l.objects.end(l.key)
		_, err := l.unsay(ctx, all, "")
		return 0, err
	}
	moved, err := l.movedAway(ctx, config, all)
	if moved || err != nil {
		return wait(guard.WaitingBackstop), err
	}
	l.serving = tenancy.ServingOf(config, all)
	if l.serving.Moving {
		config = nil
		all, l.aside = all.shown()
	}
	w, err := l.connect(ctx)
	if errors.Is(err, clustercache.ErrClusterNotConnected) {
		l.objects.end(l.key)
		return l.unreachable(ctx, all)
	}
	if err != nil {
		return 0, err
	}
	l.answers.Forget(l.key) // what it refused before is no news of the next outage
	observed, err := l.observe(ctx, w)
	if workloads.IsRefusal(err) {
		return l.refuses(ctx, w.live, err, all)
	}
	if err != nil {
		return 0, fmt.Errorf("reading Cluster %s: %w", l.key, err)
	}
	settings := tenancy.SettingsOf(config, slices.ContainsFunc(all, func(a *v1alpha1.IPAllocation) bool { return observed.Shows(a.Name) }))
	if !observed.Installed() {
		return l.withoutBalancer(ctx, w, settings, all)
	}
	if err := l.watchObjects(w.objects); err != nil {
		return 0, err
	}
	if foreign := observed.Foreign(l.shownIn(settings, all)...); foreign != "" {
		return l.inTheWay(ctx, w, settings, foreign, all)
	}
	d, err := l.decide(ctx, config, observed, settings, all)
	if err != nil {
		return 0, err
	}
	return l.serve(ctx, w, observed, d, all)
}

// balancer is the load balancer that is dealt with.
func (l *look) balancer() balancer.Balancer { return balancers[l.serving.By] }

// config is the ProviderConfig that the Cluster's blocks come from. It is nil where the Cluster gets nothing new: what
// it has stays as it is.
func (l *look) config(ctx context.Context) (*v1alpha1.ProviderConfig, error) {
	if l.cluster.Labels[v1alpha1.ProviderConfigLabel] == "" || !l.cluster.DeletionTimestamp.IsZero() {
		return nil, nil //nolint:nilnil // none is an answer
	}
	config, _, err := lookup.ConfigOf(ctx, l.Client, l.cluster, l.Blocks.Of(l.key))
	if err != nil || config == nil || config.Network().Mode != v1alpha1.IPAMMode {
		return nil, err
	}
	return config, nil
}

// movedAway reports whether clusterctl has moved blocks of the Cluster to another management cluster, and was ended before it took
// the Cluster away. What the load balancer shows stays: the other cluster shows it, when the move is over.
func (l *look) movedAway(ctx context.Context, config *v1alpha1.ProviderConfig, all allocations) (bool, error) {
	namespace := l.key.Namespace
	if config != nil {
		namespace = config.Namespace
	}
	what, err := lookup.MovedAway(ctx, l.Client, l.ref, namespace, func(name string) bool { return all.named(name) != nil })
	return what != "", err
}

// decide has it decided what becomes of the blocks.
func (l *look) decide(ctx context.Context, config *v1alpha1.ProviderConfig, observed balancer.Observed, s tenancy.Settings, all allocations) (demand.Decision, error) {
	c := demand.Cluster{Ref: l.ref, Annotations: l.cluster.Annotations, Config: config, Blocks: all}
	if config != nil {
		pools, err := lookup.PoolsOf(ctx, l.Client, config)
		if err != nil {
			return demand.Decision{}, err
		}
		c.Pools = pools
	}
	assess := func(shown []elastic.Desired, grows string, families [2]bool) elastic.Assessment {
		return observed.Assess(balancer.Outlook{Pools: shown, Grows: grows, Families: families, Class: s.Class})
	}
	w := demand.Workload{Assess: assess, Unread: observed.Unread(), Pool: l.balancer().Pool(), Emptied: l.notes.isEmptied}
	return demand.Decide(c, w, s, l.Grace, l.now), nil
}

// serve does what was decided: growth first, as somebody waits for it.
func (l *look) serve(ctx context.Context, w workload, observed balancer.Observed, d demand.Decision, all allocations) (wait, error) {
	l.measure(d)
	next := l.until(d.Next)
	grown, err := l.grow(ctx, d, all)
	if err != nil {
		return 0, err
	}
	// What is known of the blocks is said even where the workload cluster does not answer now.
	all, showing, err := l.show(ctx, w.live, observed, d.Show, all)
	all, marking, failed := l.mark(ctx, w.live, d, all)
	err = errors.Join(err, failed)
	all, draining, failed := l.drain(ctx, w.live, d.Settings, all)
	err = errors.Join(err, failed)
	next = next.or(grown).or(showing).or(marking).or(draining)
	if d.Config == nil { // whether growth would help is not known
		_, failed := l.unsay(ctx, slices.Concat(all, l.aside), "")
		return next, errors.Join(err, failed)
	}
	reporting, failed := l.report(ctx, w.live, observed, d, all)
	return next.or(reporting), errors.Join(err, failed)
}

// withoutBalancer says that there is nothing to show the blocks to.
func (l *look) withoutBalancer(ctx context.Context, w workload, s tenancy.Settings, all allocations) (wait, error) {
	reason, message := l.balancer().Missing()
	all, err := l.say(ctx, &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: reason, Message: message,
	}, all)
	_, next, failed := l.drain(ctx, w.live, s, all)
	return next.or(wait(missingBackstop)), errors.Join(err, failed)
}

// inTheWay says whose pool is where the blocks are to be shown. Nothing is added for Services meanwhile: nobody
// would see it.
func (l *look) inTheWay(ctx context.Context, w workload, s tenancy.Settings, foreign string, all allocations) (wait, error) {
	all, err := l.say(ctx, &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionFalse, Reason: v1alpha1.ForeignPoolReason, Message: foreign,
	}, all)
	_, next, failed := l.drain(ctx, w.live, s, all)
	return next, errors.Join(err, failed)
}

// shownIn are the names of the pools that the blocks of a Cluster are to be in.
func (l *look) shownIn(s tenancy.Settings, all allocations) (names []string) {
	for _, a := range all {
		_, granted := demand.RangeOf(a)
		switch {
		case !granted:
		case s.Apart:
			names = append(names, a.Name)
		default:
			return []string{l.balancer().Pool()}
		}
	}
	return names
}

// unreachable says that nothing is known of the Cluster, and keeps all that it has. The connection wakes us.
func (l *look) unreachable(ctx context.Context, all allocations) (wait, error) {
	var is *metav1.Condition
	why, err := workloads.WithoutKubeconfig(ctx, l.Live, l.cluster)
	if why != "" {
		is = tenantUnreachable()
		is.Message = why
	}
	// One that was never looked at is being built; one that was not tried yet may answer.
	if tried := l.Clusters.GetHealthCheckingState(ctx, l.key); is == nil && tried.ConsecutiveFailures > 0 {
		if refused := l.refusal(ctx); refused != nil {
			return l.refuses(ctx, nil, refused, all)
		}
		if slices.ContainsFunc(all, lookedAt) {
			is = tenantUnreachable()
		}
	}
	all, unsaid := l.say(ctx, is, all)
	_, next, failed := l.drain(ctx, nil, tenancy.Settings{}, all)
	return next.or(wait(guard.WaitingBackstop)), errors.Join(err, unsaid, failed)
}

// refusal is what the API server of a Cluster that is not connected to refuses, as far as is known; nil: nothing.
func (l *look) refusal(ctx context.Context) error {
	if !workloads.IsBuilt(l.cluster) {
		return nil
	}
	return l.answers.Refusal(ctx, l.Live, l.key, func() { l.wake(l.key) })
}

// refuses says which right is missing in the workload cluster, and keeps all that the Cluster has. No watch shows that the right
// is there.
func (l *look) refuses(ctx context.Context, live client.Client, why error, all allocations) (wait, error) {
	l.refused = why
	all, unsaid := l.say(ctx, &metav1.Condition{
		Type: v1alpha1.DemandSatisfiedCondition, Status: metav1.ConditionUnknown, Reason: v1alpha1.TenantRefusedReason,
		Message: workloads.Refusal(l.key, why, "the Cluster keeps all of its blocks, and gets no others", rightsFiles[l.serving.By]).Error(),
	}, all)
	_, next, failed := l.drain(ctx, live, tenancy.Settings{}, all)
	return next.or(wait(guard.WaitingBackstop)), errors.Join(unsaid, failed)
}

// rightsFiles have the rights that the user of a kubeconfig needs in a workload cluster, by its load balancer.
var rightsFiles = map[v1alpha1.LoadBalancerType]string{
	v1alpha1.MetalLBLoadBalancer: "config/tenant/role.yaml", v1alpha1.CiliumLoadBalancer: "config/tenant/cilium_role.yaml",
}

// lookedAt reports whether the Services of a Cluster were seen.
func lookedAt(a *v1alpha1.IPAllocation) bool {
	return tenancy.Projected(a) || tenancy.Speaks(a)
}
