package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// endpointsLimit is the limit of the share of the bare client's pace.
const endpointsLimit = 0.35

// endpointSettings are the settings of the patch in the class.
var endpointSettings = map[string]string{"poolName": poolName}

// measureEndpoints adds the response times for the endpoints of n Clusters: of new ones, of those that have an address,
// and with a full pool.
func measureEndpoints(ctx context.Context, o options, t *table) error {
	return withControlPlane(func(c *clients) error {
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
		opts := framework.ManagerOptions{Binary: o.manager, WebhookPort: port, WebhookCertDir: certs, Args: []string{"--control-plane-endpoints"}}
		return c.withManager(ctx, opts, func(m *framework.Manager) error {
			if err := c.compareEndpoints(ctx, framework.NewHooksClient(port, ca, true), o.endpoints, t); err != nil {
				return err
			}
			if err := c.checkRest(ctx, m); err != nil {
				return err
			}
			return c.checkEndpoints(ctx, o.endpoints)
		})
	})
}

func (c *clients) compareEndpoints(ctx context.Context, hooks framework.HooksClient, n int, t *table) error {
	if err := c.createEndpointClass(ctx, (1+turns)*n); err != nil {
		return err
	}
	if err := c.compareEndpointTurns(ctx, hooks, n, t); err != nil {
		return err
	}
	first, err := c.createClassClusters(ctx, "first", n)
	if err != nil {
		return err
	}
	full, err := c.createClassClusters(ctx, "full", n)
	if err != nil {
		return err
	}
	for _, round := range []struct {
		what   string
		of     []*clusterv1.Cluster
		atOnce int
		want   hooksv1.ResponseStatus
	}{
		{"%d new Clusters, one after the other", first, 1, hooksv1.ResponseStatusSuccess},
		{"%d Clusters at once that have their address", first, n, hooksv1.ResponseStatusSuccess},
		{"%d Clusters at once that find the pool full", full, n, hooksv1.ResponseStatusFailure},
		{"the same %d, asked again", full, n, hooksv1.ResponseStatusFailure},
	} {
		took, met, err := timePatchRequests(ctx, hooks, round.of, round.atOnce, round.want)
		if err != nil {
			return fmt.Errorf("%s: %w", round.what, err)
		}
		what := fmt.Sprintf(round.what, n)
		t.add(what+", p50", formatMillis(took[n/2]), "p99 "+formatMillis(took[n*99/100]))
		if met != n {
			return fmt.Errorf("%s: %d of the answers are %s", what, met, round.want)
		}
	}
	return nil
}

// checkEndpoints returns an error unless each Cluster of the turns and of the first round has an address, each of the
// Clusters that found the pool full has a claim that waits, and no two have the same address.
func (c *clients) checkEndpoints(ctx context.Context, n int) error {
	addresses, claims := &ipamv1.IPAddressList{}, &ipamv1.IPAddressClaimList{}
	for _, list := range []client.ObjectList{addresses, claims} {
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
	}
	served := (1 + 2*turns) * n // including those of the bare client
	if len(addresses.Items) != served || len(claims.Items) != served+n {
		return fmt.Errorf("there are %d addresses of %d claims, not %d of %d", len(addresses.Items), len(claims.Items), served, served+n)
	}
	return checkUnique(pools.Objects{Claims: claims.Items, Addresses: addresses.Items})
}

// createEndpointClass creates the class, and a pool with so many addresses.
func (c *clients) createEndpointClass(ctx context.Context, addresses int) error {
	class := &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "class"}}
	template := clusterv1.ClusterClassTemplateReference{APIVersion: "example.com/v1", Kind: "None", Name: "none"}
	class.Spec.Infrastructure.TemplateRef, class.Spec.ControlPlane.TemplateRef = template, template
	class.Spec.Patches = []clusterv1.ClusterClassPatch{{
		Name: "endpoint", External: &clusterv1.ExternalPatchDefinition{GeneratePatchesExtension: "control-plane-endpoint.butler-ipam", Settings: endpointSettings},
	}}
	pool := framework.MakePool(poolName).Namespace(namespace).Addresses(fmt.Sprintf("10.0.0.1-10.0.%d.%d", addresses/256, addresses%256)).Prefix(16).Obj()
	for _, obj := range []client.Object{class, pool} {
		if err := c.Create(ctx, obj); err != nil {
			return err
		}
	}
	return nil
}

// createClassClusters creates n Clusters of the class.
func (c *clients) createClassClusters(ctx context.Context, name string, n int) ([]*clusterv1.Cluster, error) {
	out := make([]*clusterv1.Cluster, n)
	return out, runEach(ctx, n, func(ctx context.Context, i int) error {
		out[i] = &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%03d", name, i)}}
		out[i].Spec.Topology.ClassRef.Name, out[i].Spec.Topology.Version = "class", "v1.36.0"
		return c.Create(ctx, out[i])
	})
}

// compareEndpointTurns adds the response times for new endpoints of n Clusters at once. It alternates with a bare
// client that creates a claim for each and does the three writes that serve it: before these are done, no server can
// know that the address stays.
func (c *clients) compareEndpointTurns(ctx context.Context, hooks framework.HooksClient, n int, t *table) error {
	var bare, managed struct{ p50, p99 []time.Duration }
	met := 0
	for turn := range turns {
		took, err := timeEach(ctx, n, n, func(ctx context.Context, i int) error {
			name := bareClaimName(turn*n + i)
			if err := c.createUnservedClaim(ctx, name); err != nil {
				return err
			}
			return c.writeClaim(ctx, name, turn*n+i)
		})
		if err != nil {
			return err
		}
		bare.p50, bare.p99 = append(bare.p50, took[n/2]), append(bare.p99, took[n*99/100])

		clusters, err := c.createClassClusters(ctx, fmt.Sprintf("turn-%d", turn), n)
		if err != nil {
			return err
		}
		took, right, err := timePatchRequests(ctx, hooks, clusters, n, hooksv1.ResponseStatusSuccess)
		if err != nil {
			return err
		}
		managed.p50, managed.p99 = append(managed.p50, took[n/2]), append(managed.p99, took[n*99/100])
		met += right
		if right < n {
			if err := requestEndpoints(ctx, hooks, clusters); err != nil {
				return err
			}
		}
	}
	bareP99, p99 := median(bare.p99), median(managed.p99)
	t.add(fmt.Sprintf("%d claims at once, bare client, p50", n), formatMillis(median(bare.p50)), fmt.Sprintf("p99 %s, medians of %d turns", formatMillis(bareP99), turns))
	t.addShare(fmt.Sprintf("%d new Clusters at once, in turns with it, p50", n), formatMillis(median(managed.p50)), bareP99.Seconds()/p99.Seconds(), endpointsLimit,
		fmt.Sprintf("p99 %s; %d of %d %s", formatMillis(p99), met, turns*n, hooksv1.ResponseStatusSuccess))
	return nil
}

// requestEndpoints repeats the requests for Clusters until each has its address, as Cluster API does: some responses
// have taken longer than their limit.
func requestEndpoints(ctx context.Context, hooks framework.HooksClient, of []*clusterv1.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	for {
		_, met, err := timePatchRequests(ctx, hooks, of, 1, hooksv1.ResponseStatusSuccess)
		if err == nil && met < len(of) {
			err = sleepContext(ctx, metricsPeriod)
		} else if err == nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%d of %d Clusters have an address: %w", met, len(of), err)
		}
	}
}

// timePatchRequests returns the response times for Clusters, ascending, and the number of responses with the wanted
// status.
func timePatchRequests(ctx context.Context, hooks framework.HooksClient, of []*clusterv1.Cluster, atOnce int, want hooksv1.ResponseStatus) ([]time.Duration, int, error) {
	var met atomic.Int64
	took, err := timeEach(ctx, atOnce, len(of), func(ctx context.Context, i int) error {
		resp, err := hooks.GeneratePatches(ctx, of[i], endpointSettings)
		if err == nil && resp.Status == want {
			met.Add(1)
		}
		return err
	})
	return took, int(met.Load()), err
}

// timeEach runs a step for 0 to n-1, with at most atOnce steps at a time, and returns their times, ascending.
func timeEach(ctx context.Context, atOnce, n int, step func(context.Context, int) error) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	err := runEachLimited(ctx, atOnce, n, func(ctx context.Context, i int) error {
		start := time.Now()
		err := step(ctx, i)
		took[i] = time.Since(start)
		return err
	})
	slices.Sort(took)
	return took, err
}
