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
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var (
	mirrorKey = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "ns", Name: "p.in-cluster"}
	mirrored  = ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPool, Name: "p"}
)

// aMirror is the memory of a pool that mirrors InClusterIPPool p.
func aMirror(t *testing.T, addresses string, change ...func(*v1alpha1.NetworkPool)) *grants.Memory {
	t.Helper()
	p := aPool(t, addresses, append(change, func(o *v1alpha1.NetworkPool) {
		o.Name = mirrorKey.Name
		incluster.Seal(o)
	})...)
	p.Key = mirrorKey
	return p
}

// What a user writes into the spec of a mirror is in no pool of the in-cluster provider: nothing of it is granted,
// whichever manager asks, at whichever moment before it is put back.
func TestAMirrorWithAnotherSpec(t *testing.T) {
	widen := func(o *v1alpha1.NetworkPool) { o.Spec.Addresses = []string{"10.0.0.10-10.0.0.200"} }
	for name, c := range map[string]struct {
		edit   func(*v1alpha1.NetworkPool)
		grants bool
	}{
		"as it was translated":          {edit: func(*v1alpha1.NetworkPool) {}, grants: true},
		"widened by a user":             {edit: widen},
		"made by hand":                  {edit: func(o *v1alpha1.NetworkPool) { o.Annotations = nil }},
		"handed over, and then widened": {edit: func(o *v1alpha1.NetworkPool) { widen(o); o.Annotations[incluster.HandedOverAnnotation] = "" }},
		"a pool of its own, widened":    {edit: func(o *v1alpha1.NetworkPool) { widen(o); incluster.End(o) }, grants: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := aMirror(t, "10.0.0.10")
			edited := p.Base.DeepCopyObject().(*v1alpha1.NetworkPool)
			c.edit(edited)
			p.SetBase(edited)
			p.Compile()
			ref := mirrored
			if incluster.Ended(edited) {
				ref = mirrorKey.Ref()
			}
			seen := see(p, "c", 0, naming(ref))
			granted, refused := p.Plan(noon, maxBatch, New(Options{}).admission(t.Context(), p, noon))
			if (granted == 1) != c.grants {
				t.Errorf("%d are granted, it is told %+v", granted, refused[seen])
			}
			if no := refused[seen]; !c.grants && (no == nil || !strings.Contains(no.Message, "change InClusterIPPool ns/p")) {
				t.Errorf("it is told %+v", no)
			}
		})
	}
}

// What a message says to change is the pool that is mirrored: the manager puts back what is changed of a mirror.
func TestMessagesOfMirrorsNameTheirPool(t *testing.T) { // U88
	t.Run("full", func(t *testing.T) {
		p := aMirror(t, "10.0.0.10")
		see(p, "a", 0, naming(mirrored))
		seen := see(p, "b", 1, naming(mirrored))
		_, refused := p.Plan(noon, maxBatch, New(Options{}).admission(t.Context(), p, noon))
		if no := refused[seen]; no == nil || !strings.Contains(no.Message, "add addresses to InClusterIPPool ns/p, or") {
			t.Errorf("it is told %+v", no)
		}
	})
	t.Run("paused", func(t *testing.T) {
		p := aMirror(t, "10.0.0.10", func(o *v1alpha1.NetworkPool) { o.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} })
		if text := p.PauseOf(see(p, "a", 0, naming(mirrored)), grants.ClusterOpen); !strings.Contains(text, "is paused with InClusterIPPool ns/p; remove the annotation") {
			t.Error(text)
		}
		if _, text := p.Closed(noon); !strings.Contains(text, "remove the annotation from InClusterIPPool ns/p to resume") {
			t.Error(text)
		}
		incluster.Annotate(p.Base, incluster.HandedOverAnnotation, "", true) // from then on the mirror is paused by itself
		if _, text := p.Closed(noon); strings.Contains(text, "InClusterIPPool") {
			t.Error(text)
		}
	})
	t.Run("of one range", func(t *testing.T) {
		a := New(Options{})
		for _, name := range []string{"p.in-cluster", "q.in-cluster"} {
			pool := framework.MakePool(name).Namespace("ns").Addresses("10.0.0.10-10.0.0.19").Obj()
			pool.UID, pool.Generation, pool.Spec.AllowOverlap = types.UID(name), 1, true
			a.publish(pool)
		}
		text, _ := a.overlaps.of(mirrorKey)
		for _, want := range []string{"InClusterIPPool ns/q has 10.0.0.10-10.0.0.19 too", "change spec.addresses of InClusterIPPool ns/p"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q does not say %q", text, want)
			}
		}
	})
}

func naming(ref ipamv1.IPPoolReference) func(*ipamv1.IPAddressClaim) {
	return func(c *ipamv1.IPAddressClaim) { c.Spec.PoolRef = ref }
}

// The in-cluster provider, should it come back, counts no address that was given under the name of a mirror.
func TestNamingMirrors(t *testing.T) {
	handedOver := func(o *v1alpha1.NetworkPool) {
		o.Annotations = map[string]string{incluster.HandedOverAnnotation: ""}
	}
	marked := func(key, value string) func(o *v1alpha1.NetworkPool) {
		return func(o *v1alpha1.NetworkPool) {
			handedOver(o)
			o.Annotations[key] = value
		}
	}
	ending, ended := marked(incluster.EndingAnnotation, "somebody names it"), marked(incluster.EndedAnnotation, "")
	for name, c := range map[string]struct {
		pool   func(*v1alpha1.NetworkPool)
		claim  []func(*ipamv1.IPAddressClaim)
		refuse string
	}{
		"a claim that names the pool":   {claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}},
		"a claim that names the mirror": {refuse: "kubectl annotate inclusterippools.ipam.cluster.x-k8s.io -n ns p butler.butlerlabs.dev/handed-over="},
		"of a pool that is handed over": {pool: handedOver},
		"of one that is being deleted":  {pool: ending},
		"of one that has ended":         {pool: ended},
		"a claim that names a pool that is being deleted": {pool: ending, claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)},
			refuse: "InClusterIPPool p is being deleted, and NetworkPool ns/p.in-cluster has its addresses"},
		"one that has ended":                     {pool: ended, claim: []func(*ipamv1.IPAddressClaim){naming(mirrored)}, refuse: "InClusterIPPool p has ended"},
		"one that has an address of that":        {pool: ended, claim: []func(*ipamv1.IPAddressClaim){naming(mirrored), remembers("10.0.0.11")}},
		"one that has an address of it":          {claim: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.11")}},
		"one with what a user wrote as a record": {claim: []func(*ipamv1.IPAddressClaim){remembers("10.0.0.11"), func(c *ipamv1.IPAddressClaim) { c.Finalizers = nil }}, refuse: "mirrors InClusterIPPool p"},
	} {
		t.Run(name, func(t *testing.T) {
			p := aMirror(t, "10.0.0.10-10.0.0.12", func(o *v1alpha1.NetworkPool) {
				if c.pool != nil {
					c.pool(o)
				}
			})
			seen := see(p, "c", 0, append([]func(*ipamv1.IPAddressClaim){naming(mirrorKey.Ref())}, c.claim...)...)
			granted, refused := p.Plan(noon, maxBatch, New(Options{}).admission(t.Context(), p, noon))
			switch no := refused[seen]; {
			case c.refuse == "" && (granted != 1 || no != nil):
				t.Errorf("it is refused: %+v", no)
			case c.refuse != "" && (no == nil || no.Reason != ipamv1.IPAddressClaimReadyPoolNotReadyReason || !strings.Contains(no.Message, c.refuse)):
				t.Errorf("%d are granted, it is told %+v", granted, no)
			}
		})
	}
	t.Run("an IPAllocation", func(t *testing.T) {
		p := aMirror(t, "10.0.0.10-10.0.0.40")
		p.Observe(blocks.Of(&v1alpha1.IPAllocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "uid-b", ResourceVersion: "1"},
			Spec:       v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: mirrorKey.Name}, Type: v1alpha1.LoadBalancerAllocation},
		}))
		if granted, refused := p.Plan(noon, maxBatch, New(Options{}).admission(t.Context(), p, noon)); granted != 0 || len(refused) != 1 {
			t.Errorf("%d are granted, %d refused", granted, len(refused))
		}
	})
}

// U85: what is left of a pool that has ended needs no manager that serves the in-cluster provider's pools.
func TestEndedIsServed(t *testing.T) {
	p := aMirror(t, "10.0.0.10-10.0.0.12", func(o *v1alpha1.NetworkPool) { o.Name = mirrorKey.Name })
	a := New(Options{})
	if no := a.unserved(mirrorKey, p.Base); no == nil {
		t.Error("a mirror is served")
	}
	incluster.End(p.Base)
	if no := a.unserved(mirrorKey, p.Base); no != nil {
		t.Errorf("it is not served: %s", no.Message)
	}
	if source := incluster.SourceOf(p.Base); source != nil {
		t.Errorf("it mirrors %v", source)
	}
}
