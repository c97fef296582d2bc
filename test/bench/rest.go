package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// settlePeriod is longer than the delay of the writes that a manager does later: the counts of a ClusterCIDR,
	// every ten seconds.
	settlePeriod = 15 * time.Second
	// restPeriod is how long a manager that has settled must do nothing: longer than the minute after which every
	// pool is reconciled again.
	restPeriod = 70 * time.Second
)

// waitUntilSettled waits until a manager has sent no request for a period.
func waitUntilSettled(ctx context.Context, m *framework.Manager, period time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, longTimeout)
	defer cancel()
	last := -1.0
	for {
		now, err := m.ReadMetric(ctx, "rest_client_requests_total")
		if err != nil || now == last {
			return err
		}
		last = now
		if err := sleepContext(ctx, period); err != nil {
			return fmt.Errorf("the manager never settles, it has sent %.0f requests: %w", now, err)
		}
	}
}

// checkRest waits until a manager has settled, and returns an error if it does anything in the restPeriod after that.
// Allowed are the reconciles that are repeated whatever happens, twice a minute for each Cluster and once for other
// objects, and as many reads as watches have ended: a watch is opened again after five to ten minutes.
func (c *clients) checkRest(ctx context.Context, m *framework.Manager) error {
	if err := waitUntilSettled(ctx, m, settlePeriod); err != nil {
		return err
	}
	objects := 0
	for _, list := range []client.ObjectList{&v1alpha1.NetworkPoolList{}, &v1alpha1.ClusterCIDRList{}, &clusterv1.ClusterList{}} {
		if err := c.List(ctx, list); err != nil {
			return err
		}
		objects += meta.LenList(list)
	}
	ended, err := c.countEndedWatches(ctx)
	if err != nil {
		return err
	}
	before, err := m.ReadWorkCounts(ctx)
	if err != nil {
		return err
	}
	if err := sleepContext(ctx, restPeriod); err != nil {
		return err
	}
	after, err := m.ReadWorkCounts(ctx)
	if err != nil {
		return err
	}
	endedNow, err := c.countEndedWatches(ctx)
	if err != nil {
		return err
	}
	did := after.Since(before)
	maps.DeleteFunc(did, func(what string, n float64) bool {
		switch {
		case strings.HasPrefix(what, "reconciles of "):
			return n <= 3*float64(objects)
		case strings.HasPrefix(what, "reads of "):
			return n <= endedNow-ended
		}
		return false
	})
	if len(did) > 0 {
		return fmt.Errorf("the manager does not rest: %v in %s", did, restPeriod)
	}
	return nil
}
