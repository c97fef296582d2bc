package allocator

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// setPausedAnnotation pauses an object.
func setPausedAnnotation(o metav1.Object) {
	o.SetAnnotations(map[string]string{clusterv1.PausedAnnotation: ""})
}

func TestPauseMessageFor(t *testing.T) {
	own := func(c *ipamv1.IPAddressClaim) { setPausedAnnotation(c) }
	of := func(c *ipamv1.IPAddressClaim) { c.Spec.ClusterName = "k" }
	held := func(o *v1alpha1.NetworkPool) { setPausedAnnotation(o) }
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
			p := newTestPool(t, "10.0.0.1-10.0.0.9", c.pool...)
			if got := p.Conditions.PauseMessageFor(observeClaim(p, "c", 0, c.claim...), c.clusterState); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestPauseIsReportedOnce checks that a pause is reported once, by the manager that serves the pool, on claims that it
// serves.
func TestPauseIsReportedOnce(t *testing.T) {
	const message = "IPAddressClaim has the annotation cluster.x-k8s.io/paused; remove it to resume"
	withPausedCondition := func(c *ipamv1.IPAddressClaim) {
		c.Status.Conditions = []metav1.Condition{{Type: clusterv1.PausedCondition, Status: metav1.ConditionTrue, Message: message}}
	}
	for name, c := range map[string]struct {
		published, follows bool
		clusterState       grants.ClusterState
		filter             string
		want               bool
	}{
		"not yet reported":             {want: true},
		"reported before":              {published: true},
		"another manager's pool":       {follows: true},
		"another manager's claim":      {filter: "theirs"},
		"whose Cluster is not visible": {clusterState: grants.ClusterUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			a := New(Options{WatchFilter: c.filter})
			p := newTestPool(t, "10.0.0.1-10.0.0.9")
			p.Term.Holder = !c.follows
			changes := []func(*ipamv1.IPAddressClaim){func(c *ipamv1.IPAddressClaim) { setPausedAnnotation(c) }}
			if c.published {
				changes = append(changes, withPausedCondition)
			}
			claim := observeClaim(p, "c", 0, changes...)
			p.Conditions.RecordAdmission(claim, grants.AdmissionResult{Wait: true, Quiet: a.scope.isForOtherManager(claim), ClusterState: c.clusterState})
			if got := len(p.Conditions.Unpublished) > 0; got != c.want {
				t.Errorf("reported: %v", got)
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
		"paused":    {change: func(o *v1alpha1.NetworkPool) { setPausedAnnotation(o) }, reason: clusterv1.PausedReason, besides: "have settled"},
		"deleted":   {change: func(o *v1alpha1.NetworkPool) { o.DeletionTimestamp = &metav1.Time{Time: noon} }, reason: v1alpha1.DeletingReason, besides: "because it is being deleted"},
		"not valid": {change: func(*v1alpha1.NetworkPool) {}, specErr: "no addresses", reason: v1alpha1.ValidationFailedReason, besides: "grants nothing: no addresses"},
		"as it was": {change: func(*v1alpha1.NetworkPool) {}, besides: "have settled"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPool(t, "10.0.0.1-10.0.0.9", c.change)
			p.Space.SpecErr = c.specErr
			if reason, _ := p.Status.ClosedReason(noon); reason != c.reason {
				t.Errorf("it says %s", reason)
			}
			p.Quarantine.Until = noon.Add(1)
			adopting, text := p.Status.ClosedReason(noon)
			if adopting != v1alpha1.AdoptingReason || !strings.HasSuffix(text, c.besides) {
				t.Errorf("while it is adopted it says %s, %s", adopting, text)
			}
		})
	}
}
