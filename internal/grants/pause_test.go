package grants_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

func TestPauseMessageFor(t *testing.T) {
	own := func(c *ipamv1.IPAddressClaim) { grantstest.SetPausedAnnotation(c) }
	of := func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = "k" }
	held := func(o *v1alpha1.NetworkPool) { grantstest.SetPausedAnnotation(o) }
	for name, c := range map[string]struct {
		pool         []func(*v1alpha1.NetworkPool)
		claim        []func(*ipamv1.IPAddressClaim)
		clusterState grants.ClusterState
		want         string
	}{
		"nothing":              {},
		"the claim":            {claim: []func(*ipamv1.IPAddressClaim){own}, want: "IPAddressClaim has the annotation cluster.x-k8s.io/paused; remove it to resume"},
		"the Cluster":          {claim: []func(*ipamv1.IPAddressClaim){of}, clusterState: grants.ClusterPaused, want: "Cluster ns/k is paused; resume it to go on"},
		"the pool":             {pool: []func(*v1alpha1.NetworkPool){held}, want: "NetworkPool ns/pool is paused; remove its annotation cluster.x-k8s.io/paused to resume"},
		"all: the closest one": {pool: []func(*v1alpha1.NetworkPool){held}, claim: []func(*ipamv1.IPAddressClaim){of, own}, clusterState: grants.ClusterPaused, want: "IPAddressClaim has the annotation cluster.x-k8s.io/paused; remove it to resume"},
		"no such Cluster":      {claim: []func(*ipamv1.IPAddressClaim){of}, clusterState: grants.ClusterNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", c.pool...)
			if got := p.Conditions.PauseMessageFor(grantstest.ObserveClaim(p, "c", 0, c.claim...), c.clusterState); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestAdoptionStaysOnRecord checks that a quarantine is on record in the condition Ready, and that nothing else is
// written over it (R10).
func TestAdoptionStaysOnRecord(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*v1alpha1.NetworkPool)
		specErr string
		reason  string
		// besides is how the message ends while the pool is adopted.
		besides string
	}{
		"paused":    {change: func(o *v1alpha1.NetworkPool) { grantstest.SetPausedAnnotation(o) }, reason: clusterv1.PausedReason, besides: "have settled"},
		"deleted":   {change: func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &metav1.Time{Time: grantstest.Noon} }, reason: v1alpha1.DeletingReason, besides: "because it is being deleted"},
		"not valid": {change: func(*v1alpha1.NetworkPool) {}, specErr: "no addresses", reason: v1alpha1.ValidationFailedReason, besides: "grants nothing: no addresses"},
		"as it was": {change: func(*v1alpha1.NetworkPool) {}, besides: "have settled"},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewPool(t, "10.0.0.1-10.0.0.9", c.change)
			p.Space.SpecErr = c.specErr
			if reason, _ := p.Status.ClosedReason(grantstest.Noon); reason != c.reason {
				t.Errorf("it says %s", reason)
			}
			p.Quarantine.Until = grantstest.Noon.Add(1)
			adopting, text := p.Status.ClosedReason(grantstest.Noon)
			if adopting != v1alpha1.AdoptingReason || !strings.HasSuffix(text, c.besides) {
				t.Errorf("while it is adopted it says %s, %s", adopting, text)
			}
		})
	}
}
