package tenant

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/guard"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/tenancy"
)

// grow asks the pools for what is lacking, one block of each family at a time. It returns what to say where no
// pool has anything.
func (t *tenant) grow(ctx context.Context, pools []tenancy.Pool, assessed elastic.Assessment, plan elastic.Plan, s settings) (exhausted string, err error) {
	if t.config == nil || !s.elastic || !t.begun() {
		return "", nil
	}
	for _, f := range []elastic.Family{elastic.IPv4, elastic.IPv6} {
		of := slices.DeleteFunc(slices.Clone(pools), func(p tenancy.Pool) bool { return p.IPv6 != (f == elastic.IPv6) })
		request := t.request(of, pools, f)
		count := int64(0)
		if at := slices.IndexFunc(plan.Grow, func(g elastic.Growth) bool { return g.Family == f }); at >= 0 {
			count = plan.Grow[at].Count
		}
		if request != nil && count == 0 && assessed.Lacking[f] > 0 && !refused(request) {
			continue // it is on its way
		}
		if request == nil && count == 0 && t.cluster.Annotations[v1alpha1.TriedGrowthPoolsAnnotation] == "" {
			continue
		}
		said, err := t.ask(ctx, of, pools, request, int32(min(count, 1<<31-1)))
		if err != nil {
			return "", err
		}
		if said != "" {
			exhausted = said
		}
	}
	return exhausted, nil
}

// begun reports whether the Cluster has what it is to begin with.
func (t *tenant) begun() bool {
	if first := t.block(tenancy.Name(t.ref)); first != nil {
		_, granted := rangeOf(first)
		return granted
	}
	size, err := tenancy.Size(t.config.Network(), t.cluster.Annotations)
	return err == nil && size.Count == 0
}

// request is the block that was asked for and is not granted yet, of pools of one family. One of a pool that
// the ProviderConfig does not name any more is of the first family.
func (t *tenant) request(of, all []tenancy.Pool, f elastic.Family) *v1alpha1.IPAllocation {
	for _, a := range t.blocks {
		if _, granted := rangeOf(a); granted || tenancy.Role(a) != v1alpha1.GrowthRole {
			continue
		}
		from := func(p tenancy.Pool) bool { return p.Ref == tenancy.StandingOf(a).Pool }
		if slices.ContainsFunc(of, from) || (f == elastic.IPv4 && !slices.ContainsFunc(all, from)) {
			return a
		}
	}
	return nil
}

// ask does the next thing for a block of count addresses from pools of one family.
func (t *tenant) ask(ctx context.Context, pools, all []tenancy.Pool, request *v1alpha1.IPAllocation, count int32) (exhausted string, err error) {
	tried := tenancy.ParseTried(t.cluster.Annotations[v1alpha1.TriedGrowthPoolsAnnotation])
	situation := tenancy.Situation{Config: client.ObjectKeyFromObject(t.config), Count: count, Pools: pools, Tried: tried}
	if request != nil {
		situation.Standing = tenancy.StandingOf(request)
	}
	d := tenancy.Grow(situation)
	// What was tried with pools of the other family stays.
	for _, a := range tried {
		of := func(p tenancy.Pool) bool { return p.Ref == a.Pool }
		if slices.ContainsFunc(all, of) && !slices.ContainsFunc(pools, of) {
			d.Tried = append(d.Tried, a)
		}
	}
	if err := t.noteTried(ctx, d.Tried); err != nil {
		return "", err
	}
	switch d.Action {
	case tenancy.Try:
		return "", t.create(ctx, d)
	case tenancy.Replace:
		err := t.Client.Delete(ctx, request, client.Preconditions{UID: &request.UID, ResourceVersion: &request.ResourceVersion})
		return "", client.IgnoreNotFound(err)
	case tenancy.Exhausted:
		return d.Message, nil
	case tenancy.Done, tenancy.Wait:
	}
	return "", nil
}

// create makes the block under the first name that is free: a number is used again when nothing has it.
func (t *tenant) create(ctx context.Context, d tenancy.Decision) error {
	for n := 1; ; n++ {
		name := tenancy.GrowthName(t.ref, n)
		if t.block(name) != nil {
			continue
		}
		a := tenancy.Request(t.ref, t.config, name, v1alpha1.GrowthRole, d.Pool, d.Count)
		guard.Label(a, t.WatchFilter)
		err := t.Client.Create(ctx, a)
		if apierrors.IsAlreadyExists(err) {
			mine, err := t.mine(ctx, client.ObjectKeyFromObject(a))
			if err != nil || mine {
				t.soon(0) // our watch is behind
				return err
			}
			continue // another Cluster's names make the same name
		}
		if err != nil {
			return fmt.Errorf("asking for %d addresses: %w", d.Count, err)
		}
		t.Blocks.Observe(a)
		metrics.Growths.WithLabelValues(t.key.Namespace, t.key.Name).Inc()
		t.Recorder.Eventf(t.cluster, a, corev1.EventTypeNormal, "LoadBalancerPoolGrowing", "Allocate",
			"Services wait for addresses: asking %s %s for %d", d.Pool.Kind, d.Pool.Name, d.Count)
		return nil
	}
}

// mine reports whether an IPAllocation that exists is the Cluster's, and remembers it then.
func (t *tenant) mine(ctx context.Context, key client.ObjectKey) (bool, error) {
	a := &v1alpha1.IPAllocation{}
	if err := t.Live.Get(ctx, key, a); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	if tenancy.Owns(t.ref, a) {
		t.Blocks.Observe(a)
		return true, nil
	}
	return false, nil
}

// noteTried writes on the Cluster which pools had nothing for it, before the next is asked.
func (t *tenant) noteTried(ctx context.Context, tried []tenancy.Attempt) error {
	before := t.cluster.DeepCopy()
	if !tenancy.SetTried(t.cluster, v1alpha1.TriedGrowthPoolsAnnotation, tried) {
		return nil
	}
	return t.Client.Patch(ctx, t.cluster, guard.SinceRead(before))
}
