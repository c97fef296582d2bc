package dropin

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

var noon = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// TestPlanHandBack checks the plan for an unused mirror, and each obstacle to a hand-back.
func TestPlanHandBack(t *testing.T) {
	direct := ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "p.in-cluster"}
	old := ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPoolKind, Name: "p"}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	claims := func(in *planInput, ref ipamv1.IPPoolReference, name, record string) {
		c := ipamv1.IPAddressClaim{ObjectMeta: meta(name), Spec: ipamv1.IPAddressClaimSpec{PoolRef: ref}}
		if c.UID = "uid-c"; record != "" {
			c.Annotations, c.Finalizers = map[string]string{v1alpha1.AddressAnnotation: record}, []string{v1alpha1.ClaimFinalizer}
		}
		in.claims = append(in.claims, c)
	}
	addServedClaim := func(in *planInput, ref ipamv1.IPPoolReference, name, address string) {
		claims(in, ref, name, address)
		a := ipamv1.IPAddress{ObjectMeta: meta(name), Spec: ipamv1.IPAddressSpec{PoolRef: ref, Address: address}}
		a.OwnerReferences = []metav1.OwnerReference{{UID: "uid-c"}}
		in.addresses = append(in.addresses, a)
	}
	status := func(in *planInput) *v1alpha1.NetworkPoolStatus { return in.mirrors[0].PoolStatus() }
	ready := func(in *planInput, reason string) {
		status(in).Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Reason: reason}}
	}
	granted := func(in *planInput) {
		status(in).Allocator = &v1alpha1.AllocatorStatus{InFlight: []v1alpha1.Grant{{Namespace: "ns", Name: "c", UID: "uid-c", First: "10.0.0.10", Last: "10.0.0.10"}}}
	}
	resting := func(in *planInput) {
		status(in).Cooling = []v1alpha1.CoolingGroup{{Until: metav1.NewTime(noon.Add(time.Minute)), Addresses: "10.0.0.9"}}
	}
	none := func(in *planInput) { in.claims, in.addresses, in.allocations = nil, nil, nil }
	// helps has the alternatives of each advice; each alone removes the problem.
	helps := map[string][]func(*planInput){ // W29
		"a manager serves it":                       {func(in *planInput) { in.servingManagers = nil }},
		"a manager with the component":              {func(in *planInput) { ready(in, v1alpha1.NotServedReason) }, func(in *planInput) { in.managers = nil }},
		"who names the mirror":                      {none},
		"who was given something":                   {none},
		"a block":                                   {none},
		"a grant that may be on its way":            {func(in *planInput) { none(in); addServedClaim(in, old, "c", "10.0.0.10") }, none},
		"what rests":                                {nil, func(in *planInput) { status(in).Cooling[0].Until = metav1.NewTime(noon) }}, // nil: --without-rests
		"what is no rest":                           {func(in *planInput) { status(in).Cooling[0].Addresses = "10.0.0.9" }, func(in *planInput) { status(in).Cooling = nil }},
		"what was handed over and is being deleted": {func(in *planInput) { in.deletingSources = nil }},
		"what was moved":                            {func(in *planInput) { status(in).Held = nil }},
	}
	for name, c := range map[string]struct {
		change  func(*planInput)
		without bool
		want    []string
		waiting []string
	}{
		"what is no rest": {change: func(in *planInput) {
			status(in).Cooling = []v1alpha1.CoolingGroup{{Until: metav1.NewTime(noon), Addresses: "ten"}}
		}, want: []string{`the status of NetworkPool ns/p.in-cluster has an entry that cannot be parsed: status.cooling: parsing "ten": "ten" is not an IP address`}},
		"nothing":                {},
		"who names the old pool": {change: func(in *planInput) { addServedClaim(in, old, "c", "10.0.0.10") }},
		"a manager serves it":    {change: func(in *planInput) { in.servingManagers = []string{"pod -n x y"} }, want: []string{"a manager serves the pools: pod -n x y"}},
		"a manager with the component": {change: func(in *planInput) { in.managers = []string{"pod -n x y"}; ready(in, "Serving") },
			want: []string{"a manager serves NetworkPool ns/p.in-cluster: pod -n x y"}},
		"a manager without it":    {change: func(in *planInput) { in.managers = []string{"pod -n x y"}; ready(in, v1alpha1.NotServedReason) }},
		"a manager that is gone":  {change: func(in *planInput) { ready(in, "Serving") }},
		"who names the mirror":    {change: func(in *planInput) { addServedClaim(in, direct, "c", "10.0.0.10") }, want: []string{"IPAddress ns/c has 10.0.0.10 of NetworkPool ns/p.in-cluster"}},
		"who was given something": {change: func(in *planInput) { claims(in, direct, "c", "10.0.0.10") }, want: []string{"IPAddressClaim ns/c was given 10.0.0.10 of NetworkPool ns/p.in-cluster"}},
		"who waits":               {change: func(in *planInput) { claims(in, direct, "c", "") }, waiting: []string{"IPAddressClaim ns/c"}},
		"a block": {change: func(in *planInput) {
			o := v1alpha1.IPAllocation{ObjectMeta: meta("b"), Spec: v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: "p.in-cluster"}}}
			o.Status.StartAddress = "10.0.0.8"
			in.allocations = append(in.allocations, o)
		}, want: []string{"IPAllocation ns/b has a block of NetworkPool ns/p.in-cluster"}},
		"a grant that may be on its way": {change: func(in *planInput) { granted(in); claims(in, old, "c", "") },
			want: []string{"IPAddressClaim ns/c was granted 10.0.0.10 of NetworkPool ns/p.in-cluster before the manager stopped, and its IPAddress was not written"}},
		"one that has landed":            {change: func(in *planInput) { granted(in); addServedClaim(in, old, "c", "10.0.0.10") }},
		"one of which the claim is gone": {change: granted},
		"what rests":                     {change: resting, want: []string{"1 ranges of NetworkPool ns/p.in-cluster are in their reuse grace period until 2030-01-01T12:01:00Z, and the in-cluster provider would reuse them at once"}},
		"what need not rest":             {change: resting, without: true},
		"what has rested":                {change: func(in *planInput) { resting(in); status(in).Cooling[0].Until = metav1.NewTime(noon) }},
		"what was handed over and is being deleted": {change: func(in *planInput) {
			in.deletingSources = []sourcePool{{incluster.PoolKinds[0], client.ObjectKey{Namespace: "ns", Name: "p"}}}
		}, want: []string{"InClusterIPPool ns/p was handed over and is being deleted, so it cannot go back"}},
		"what was moved": {change: func(in *planInput) {
			status(in).Held = []v1alpha1.HeldRange{{First: "10.0.0.9", Last: "10.0.0.9", Reason: v1alpha1.MovedReason}}
		}, want: []string{"10.0.0.9-10.0.0.9 of NetworkPool ns/p.in-cluster is held (Moved), and the in-cluster provider would give it"}},
	} {
		t.Run(name, func(t *testing.T) {
			planned := func(without bool, changes ...func(*planInput)) *Plan {
				mirror := &v1alpha1.NetworkPool{ObjectMeta: meta("p.in-cluster")}
				mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "p", Controller: ptr.To(true)}}
				in := &planInput{mirrors: []v1alpha1.Pool{mirror}}
				for _, change := range changes {
					if change != nil {
						change(in)
					}
				}
				return newPlan(in, noon, without)
			}
			for i, do := range helps[name] {
				if p := planned(do == nil, c.change, do); len(p.Problems) > 0 {
					t.Errorf("after step %d: %+v", i, p.Problems)
				}
			}
			p := planned(c.without, c.change)
			var got []string
			for _, problem := range p.Problems {
				if problem.Advice == "" {
					t.Errorf("nothing to do about %q", problem.Message)
				}
				got = append(got, problem.Message)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.waiting, p.Waiting); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff([]string{"InClusterIPPool ns/p"}, p.Pools); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestSourceForMirror checks that a pool of another owner with the name of a mirror is not handed back.
func TestSourceForMirror(t *testing.T) {
	for name, c := range map[string]struct {
		owner metav1.OwnerReference
		want  bool
	}{
		"a mirror":              {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "p", Controller: ptr.To(true)}, true},
		"of another pool":       {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "q", Controller: ptr.To(true)}, false},
		"not controlled":        {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "p"}, false},
		"of another group":      {metav1.OwnerReference{APIVersion: "x/v1", Kind: incluster.IPPoolKind, Name: "p", Controller: ptr.To(true)}, false},
		"of another kind there": {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: "Other", Name: "p", Controller: ptr.To(true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.in-cluster", OwnerReferences: []metav1.OwnerReference{c.owner}}}
			if _, ok := sourceForMirror(mirror); ok != c.want {
				t.Errorf("%t", ok)
			}
		})
	}
}

// TestHasServedMirror checks that pools count as served in place where a mirror that was not handed over shows it.
func TestHasServedMirror(t *testing.T) {
	mirror := func(reason string) *v1alpha1.NetworkPool {
		p := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.in-cluster", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPoolKind, Name: "p", Controller: ptr.To(true),
		}}}}
		if reason != "" {
			p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Reason: reason}}
		}
		return p
	}
	handedOver, notOwned := mirror("Serving"), mirror("Serving")
	handedOver.Annotations = map[string]string{incluster.HandedOverAnnotation: ""}
	notOwned.OwnerReferences = nil
	for name, c := range map[string]struct {
		pools []v1alpha1.Pool
		want  bool
	}{
		"nothing":                         {},
		"a mirror":                        {[]v1alpha1.Pool{notOwned, mirror("Serving")}, true},
		"a pool with such a name":         {[]v1alpha1.Pool{notOwned}, false},
		"a mirror that is not reconciled": {[]v1alpha1.Pool{mirror("")}, false},
		"a mirror that was left":          {[]v1alpha1.Pool{mirror(v1alpha1.NotServedReason)}, false},
		"a mirror that was handed over":   {[]v1alpha1.Pool{handedOver}, false},
	} {
		if got := HasServedMirror(c.pools); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
