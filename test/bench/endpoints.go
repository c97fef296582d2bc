package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/invariants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// endpointSettings are the settings of the patch in the class.
var endpointSettings = map[string]string{"poolName": poolName}

// measureEndpoints adds the response times for the endpoints of Clusters: of new ones, of those that have an address,
// and with a full pool.
func measureEndpoints(ctx context.Context, o options, t *table) error {
	return withControlPlane(ctx, func(c *clients) error {
		if err := c.controlPlane.InstallClusterAPI(ctx); err != nil {
			return err
		}
		certs, err := os.MkdirTemp(c.controlPlane.Dir, "certs-")
		if err != nil {
			return err
		}
		ca, err := framework.WriteServingCerts(certs)
		if err != nil {
			return err
		}
		port, err := framework.FreePort()
		if err != nil {
			return err
		}
		m, err := framework.StartManager(ctx, framework.ManagerOptions{
			Binary: o.manager, Kubeconfig: c.controlPlane.Kubeconfig, WebhookPort: port, WebhookCertDir: certs, Args: []string{"--audit-interval=0", "--control-plane-endpoints"},
		})
		if err != nil {
			return err
		}
		defer func() { _ = m.Kill() }()
		if err := c.compareEndpoints(ctx, framework.NewHooksClient(port, ca, true), o.endpoints, t); err != nil {
			return fmt.Errorf("%w\n%s", err, m.LogTail(20))
		}
		return c.checkEndpoints(ctx, o.endpoints, t)
	})
}

func (c *clients) compareEndpoints(ctx context.Context, hooks framework.HooksClient, n int, t *table) error {
	class := &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "class"}}
	template := clusterv1.ClusterClassTemplateReference{APIVersion: "example.com/v1", Kind: "None", Name: "none"}
	class.Spec.Infrastructure.TemplateRef, class.Spec.ControlPlane.TemplateRef = template, template
	class.Spec.Patches = []clusterv1.ClusterClassPatch{{
		Name: "endpoint", External: &clusterv1.ExternalPatchDefinition{GeneratePatchesExtension: "control-plane-endpoint.butler-ipam", Settings: endpointSettings},
	}}
	size := (1 + turnRounds) * n
	exact := framework.MakePool(poolName).Namespace(namespace).Addresses(fmt.Sprintf("10.0.0.1-10.0.%d.%d", size/256, size%256)).Prefix(16).Obj()
	for _, obj := range []client.Object{class, exact} {
		if err := c.Create(ctx, obj); err != nil {
			return err
		}
	}
	first, full := newClassClusters("first", n), newClassClusters("full", n)
	for _, cluster := range slices.Concat(first, full) {
		if err := c.Create(ctx, cluster); err != nil {
			return err
		}
	}
	if err := c.compareEndpointTurns(ctx, hooks, n, t); err != nil {
		return err
	}
	for _, round := range []struct {
		what   string
		of     []*clusterv1.Cluster
		atOnce int
		want   hooksv1.ResponseStatus
	}{
		{"new endpoints of %d Clusters, one after the other", first, 1, hooksv1.ResponseStatusSuccess},
		{"endpoints that %d Clusters have, at once", first, n, hooksv1.ResponseStatusSuccess},
		{"%d Clusters at once that find the pool full", full, n, hooksv1.ResponseStatusFailure},
		{"%d Clusters at once that find it full still", full, n, hooksv1.ResponseStatusFailure},
	} {
		took, met, err := timePatchRequests(ctx, hooks, round.of, round.atOnce, round.want)
		if err != nil {
			return fmt.Errorf("%s: %w", round.what, err)
		}
		t.add(fmt.Sprintf(round.what+", p50, p99", n), fmt.Sprintf("%.0f ms, %.0f ms", milliseconds(took[n/2]), milliseconds(took[n*99/100])), fmt.Sprintf("%d of them %s", met, round.want))
	}
	return nil
}

// compareEndpointTurns adds the response times for new endpoints of n Clusters at once. It alternates with a bare
// client that creates a claim for each and does the three writes that serve it: before these are done, no server can
// know that the address stays.
func (c *clients) compareEndpointTurns(ctx context.Context, hooks framework.HooksClient, n int, t *table) error {
	var bare, ours [2][]time.Duration // median and p99 of each turn
	var met int64
	for turn := range turnRounds {
		took := make([]time.Duration, n)
		if err := runEachLimited(ctx, n, n, func(ctx context.Context, i int) error {
			start := time.Now()
			err := c.writeBareEndpoint(ctx, turn*n+i)
			took[i] = time.Since(start)
			return err
		}); err != nil {
			return err
		}
		slices.Sort(took)
		bare[0], bare[1] = append(bare[0], took[n/2]), append(bare[1], took[n*99/100])

		all := newClassClusters(fmt.Sprintf("turn-%d", turn), n)
		for _, cluster := range all {
			if err := c.Create(ctx, cluster); err != nil {
				return err
			}
		}
		took, right, err := timePatchRequests(ctx, hooks, all, n, hooksv1.ResponseStatusSuccess)
		if err != nil {
			return err
		}
		ours[0], ours[1] = append(ours[0], took[n/2]), append(ours[1], took[n*99/100])
		if met += right; right < int64(n) { // the others took longer than the limit for a response
			if err := c.requestEndpoints(ctx, hooks, all); err != nil {
				return err
			}
		}
	}
	p50, p99, rawP99 := median(ours[0]), median(ours[1]), median(bare[1])
	t.add(fmt.Sprintf("claims of %d Clusters at once, bare client, p50, p99", n), fmt.Sprintf("%.0f ms, %.0f ms", milliseconds(median(bare[0])), milliseconds(rawP99)), fmt.Sprintf("medians of %d turns", turnRounds))
	t.add(fmt.Sprintf("new endpoints of %d Clusters at once, p50, p99", n), fmt.Sprintf("%.0f ms, %.0f ms", milliseconds(p50), milliseconds(p99)),
		fmt.Sprintf("%.2f of the bare client's pace, in turns with it; %d of %d %s", rawP99.Seconds()/p99.Seconds(), met, turnRounds*n, hooksv1.ResponseStatusSuccess))
	return nil
}

// writeBareEndpoint creates a claim of a pool without a provider, and serves it.
func (c *clients) writeBareEndpoint(ctx context.Context, i int) error {
	name := fmt.Sprintf("bare-%05d", i)
	if err := c.Create(ctx, framework.MakeClaim(namespace, name).PoolRef(unservedPool.APIGroup, unservedPool.Kind, unservedPool.Name).Obj()); err != nil {
		return err
	}
	return c.writeClaim(ctx, name, unservedPool, i)
}

// requestEndpoints repeats the requests for Clusters until each has its address, as Cluster API does.
func (c *clients) requestEndpoints(ctx context.Context, hooks framework.HooksClient, all []*clusterv1.Cluster) error {
	for _, cluster := range all {
		for {
			resp, err := hooks.GeneratePatches(ctx, cluster, endpointSettings)
			if err != nil {
				return err
			}
			if resp.Status == hooksv1.ResponseStatusSuccess {
				break
			}
		}
	}
	return nil
}

// newClassClusters returns n Clusters of the class.
func newClassClusters(name string, n int) []*clusterv1.Cluster {
	out := make([]*clusterv1.Cluster, n)
	for i := range out {
		out[i] = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%03d", name, i)}}
		out[i].Spec.Topology.ClassRef.Name, out[i].Spec.Topology.Version = "class", "v1.36.0"
	}
	return out
}

// timePatchRequests returns the response times for Clusters, ascending, and the number of responses with the wanted
// status.
func timePatchRequests(ctx context.Context, hooks framework.HooksClient, of []*clusterv1.Cluster, atOnce int, want hooksv1.ResponseStatus) (took []time.Duration, met int64, err error) {
	took = make([]time.Duration, len(of))
	var all errgroup.Group
	all.SetLimit(atOnce)
	var n atomic.Int64
	for i, cluster := range of {
		all.Go(func() error {
			start := time.Now()
			resp, err := hooks.GeneratePatches(ctx, cluster, endpointSettings)
			took[i] = time.Since(start)
			if err == nil && resp.Status == want {
				n.Add(1)
			}
			return err
		})
	}
	err = all.Wait()
	slices.Sort(took)
	return took, n.Load(), err
}

// checkEndpoints counts the addresses that two Clusters have.
func (c *clients) checkEndpoints(ctx context.Context, n int, t *table) error {
	addresses, claims := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}
	if err := c.List(ctx, addresses, client.InNamespace(namespace)); err != nil {
		return err
	}
	if err := c.List(ctx, claims, client.InNamespace(namespace)); err != nil {
		return err
	}
	served := (1 + 2*turnRounds) * n // including those of the bare client
	if len(addresses.Items) != served || len(claims.Items) != served+n {
		return fmt.Errorf("there are %d addresses of %d claims, not %d of %d", len(addresses.Items), len(claims.Items), served, served+n)
	}
	bad := (&invariants.History{}).CheckMoment(pools.Objects{Claims: claims.Items, Addresses: addresses.Items})
	t.add("addresses that two Clusters have", fmt.Sprint(len(bad)), strings.Join(bad, "; "))
	return nil
}
