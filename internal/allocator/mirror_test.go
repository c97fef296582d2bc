package allocator

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kinds/blocks"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// TestEditedMirrorGrantsNothingNew checks that addresses that a user adds to the spec of a mirror, and that no pool of
// the in-cluster provider has, are never granted, by any manager, at any time before the spec is reverted.
func TestEditedMirrorGrantsNothingNew(t *testing.T) {
	widen := func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.10-10.0.0.200"} }
	for name, c := range map[string]struct {
		edit   func(*v1alpha1.NetworkPool)
		grants bool
	}{
		"as it was translated":          {edit: func(*v1alpha1.NetworkPool) {}, grants: true},
		"widened by a user":             {edit: widen},
		"made by hand":                  {edit: func(o *v1alpha1.NetworkPool) { o.Annotations = nil }},
		"handed over, and then widened": {edit: func(o *v1alpha1.NetworkPool) { widen(o); o.Annotations[incluster.HandedOverAnnotation] = "" }},
		"a pool of its own, widened":    {edit: func(o *v1alpha1.NetworkPool) { widen(o); incluster.EndMirror(o) }, grants: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewMirrorPool(t, "10.0.0.10")
			edited := p.Base.Pool.DeepCopyObject().(*v1alpha1.NetworkPool)
			c.edit(edited)
			p.SetBasePool(edited)
			p.Space.CompileLayout()
			ref := grantstest.MirroredPoolRef
			if incluster.IsEnded(edited) {
				ref = grantstest.MirrorKey.PoolReference()
			}
			seen := grantstest.ObserveClaim(p, "c", 0, grantstest.WithPoolRef(ref))
			granted, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, New(Options{}).admission.newAdmissionFunc(t.Context(), p, grantstest.Noon))
			if (granted == 1) != c.grants {
				t.Errorf("%d are granted; its refusal is %+v", granted, refused[seen])
			}
			if refusal := refused[seen]; !c.grants && (refusal == nil || !strings.Contains(refusal.Message, "change InClusterIPPool ns/p")) {
				t.Errorf("its refusal is %+v", refusal)
			}
		})
	}
}

// TestMessagesOfMirrorsNameTheirPool checks that messages name the mirrored pool as the one to change: the manager
// reverts changes of a mirror.
func TestMessagesOfMirrorsNameTheirPool(t *testing.T) { // U88
	t.Run("full", func(t *testing.T) {
		p := grantstest.NewMirrorPool(t, "10.0.0.10")
		grantstest.ObserveClaim(p, "a", 0, grantstest.WithPoolRef(grantstest.MirroredPoolRef))
		seen := grantstest.ObserveClaim(p, "b", 1, grantstest.WithPoolRef(grantstest.MirroredPoolRef))
		_, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, New(Options{}).admission.newAdmissionFunc(t.Context(), p, grantstest.Noon))
		if refusal := refused[seen]; refusal == nil || !strings.Contains(refusal.Message, "add addresses to InClusterIPPool ns/p, or") {
			t.Errorf("its refusal is %+v", refusal)
		}
	})
	t.Run("paused", func(t *testing.T) {
		p := grantstest.NewMirrorPool(t, "10.0.0.10", func(o *v1alpha1.NetworkPool) { o.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
		if text := p.Conditions.PauseMessageFor(grantstest.ObserveClaim(p, "a", 0, grantstest.WithPoolRef(grantstest.MirroredPoolRef)), grants.ClusterReady); !strings.Contains(text, "is paused with InClusterIPPool ns/p; remove the annotation") {
			t.Error(text)
		}
		if _, text := p.Status.ClosedReason(grantstest.Noon); !strings.Contains(text, "remove the annotation from InClusterIPPool ns/p to resume") {
			t.Error(text)
		}
		incluster.SetOrRemoveAnnotation(p.Base.Pool, incluster.HandedOverAnnotation, "", true) // from then on the mirror is paused by itself
		if _, text := p.Status.ClosedReason(grantstest.Noon); strings.Contains(text, "InClusterIPPool") {
			t.Error(text)
		}
	})
	t.Run("of one range", func(t *testing.T) {
		a := New(Options{})
		for _, name := range []string{"p.in-cluster", "q.in-cluster"} {
			pool := framework.MakePool(name).Namespace("ns").Addresses("10.0.0.10-10.0.0.19").Obj()
			pool.UID, pool.Generation, pool.Spec.AllowOverlap = types.UID(name), 1, true
			a.relations.publishDeclaration(pool)
		}
		text, _ := a.relations.overlaps.describeOverlap(grantstest.MirrorKey)
		for _, want := range []string{"InClusterIPPool ns/q has 10.0.0.10-10.0.0.19 too", "change spec.addresses of InClusterIPPool ns/p"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q does not say %q", text, want)
			}
		}
	})
}

// TestClaimsThatMayNameMirror checks which claims may name a mirror: the in-cluster provider, should it come back,
// counts no address that was granted under the name of a mirror.
func TestClaimsThatMayNameMirror(t *testing.T) {
	handedOver := func(o *v1alpha1.NetworkPool) {
		o.Annotations = map[string]string{incluster.HandedOverAnnotation: ""}
	}
	marked := func(key, value string) func(o *v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) {
			handedOver(o)
			o.Annotations[key] = value
		}
	}
	ending, ended := marked(incluster.EndingAnnotation, "a claim names it"), marked(incluster.EndedAnnotation, "")
	for name, c := range map[string]struct {
		pool   func(*v1alpha1.NetworkPool)
		claim  []func(*ipamv1.IPAddressClaim)
		refuse string
	}{
		"a claim that names the pool":   {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}},
		"a claim that names the mirror": {refuse: "kubectl annotate inclusterippools.ipam.cluster.x-k8s.io -n ns p butler.butlerlabs.dev/handed-over="},
		"of a pool that is handed over": {pool: handedOver},
		"of one that is being deleted":  {pool: ending},
		"of one that has ended":         {pool: ended},
		"a claim that names a pool that is being deleted": {pool: ending, claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)},
			refuse: "InClusterIPPool p is being deleted, and NetworkPool ns/p.in-cluster has its addresses"},
		"one that has ended":                     {pool: ended, claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef)}, refuse: "InClusterIPPool p has ended"},
		"one that has an address of that":        {pool: ended, claim: []func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirroredPoolRef), grantstest.WithRecordedAddress("10.0.0.11")}},
		"one that has an address of it":          {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.11")}},
		"one with what a user wrote as a record": {claim: []func(*ipamv1.IPAddressClaim){grantstest.WithRecordedAddress("10.0.0.11"), func(c *ipamv1.IPAddressClaim) { c.Finalizers = nil }}, refuse: "mirrors InClusterIPPool p"},
	} {
		t.Run(name, func(t *testing.T) {
			p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.12", func(o *v1alpha1.NetworkPool) {
				if c.pool != nil {
					c.pool(o)
				}
			})
			seen := grantstest.ObserveClaim(p, "c", 0, append([]func(*ipamv1.IPAddressClaim){grantstest.WithPoolRef(grantstest.MirrorKey.PoolReference())}, c.claim...)...)
			granted, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, New(Options{}).admission.newAdmissionFunc(t.Context(), p, grantstest.Noon))
			switch refusal := refused[seen]; {
			case c.refuse == "" && (granted != 1 || refusal != nil):
				t.Errorf("it is refused: %+v", refusal)
			case c.refuse != "" && (refusal == nil || refusal.Reason != ipamv1.IPAddressClaimReadyPoolNotReadyReason || !strings.Contains(refusal.Message, c.refuse)):
				t.Errorf("%d are granted; its refusal is %+v", granted, refusal)
			}
		})
	}
	t.Run("an IPAllocation", func(t *testing.T) {
		p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.40")
		p.ObserveClaimant(blocks.NewClaimant(&v1alpha1.IPAllocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "uid-b", ResourceVersion: "1"},
			Spec:       v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: grantstest.MirrorKey.Name}, Type: v1alpha1.LoadBalancerAllocation},
		}))
		if granted, refused := p.Planner.PlanGrants(grantstest.Noon, maxGrantsPerCommit, New(Options{}).admission.newAdmissionFunc(t.Context(), p, grantstest.Noon)); granted != 0 || len(refused) != 1 {
			t.Errorf("%d are granted, %d refused", granted, len(refused))
		}
	})
}

// TestMirrorOfEndedPoolIsServed checks that the mirror of a pool that has ended needs no manager that serves the
// in-cluster provider's pools (U85).
func TestMirrorOfEndedPoolIsServed(t *testing.T) {
	p := grantstest.NewMirrorPool(t, "10.0.0.10-10.0.0.12", func(o *v1alpha1.NetworkPool) { o.Name = grantstest.MirrorKey.Name })
	a := New(Options{})
	if refusal := a.scope.refusalIfUnserved(grantstest.MirrorKey, p.Base.Pool); refusal == nil {
		t.Error("a mirror is served")
	}
	incluster.EndMirror(p.Base.Pool)
	if refusal := a.scope.refusalIfUnserved(grantstest.MirrorKey, p.Base.Pool); refusal != nil {
		t.Errorf("it is not served: %s", refusal.Message)
	}
	if source := incluster.SourceOwnerRef(p.Base.Pool); source != nil {
		t.Errorf("it mirrors %v", source)
	}
}
