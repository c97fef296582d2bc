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

// A mirror on which nobody has anything, and what keeps it from being handed back.
func TestPlan(t *testing.T) {
	direct := ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: "p.in-cluster"}
	old := ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: incluster.IPPool, Name: "p"}
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "ns", Name: name} }
	claims := func(in *found, ref ipamv1.IPPoolReference, name, record string) {
		c := ipamv1.IPAddressClaim{ObjectMeta: meta(name), Spec: ipamv1.IPAddressClaimSpec{PoolRef: ref}}
		if c.UID = "uid-c"; record != "" {
			c.Annotations, c.Finalizers = map[string]string{v1alpha1.AddressAnnotation: record}, []string{v1alpha1.ClaimFinalizer}
		}
		in.claims = append(in.claims, c)
	}
	has := func(in *found, ref ipamv1.IPPoolReference, name, address string) {
		claims(in, ref, name, address)
		a := ipamv1.IPAddress{ObjectMeta: meta(name), Spec: ipamv1.IPAddressSpec{PoolRef: ref, Address: address}}
		a.OwnerReferences = []metav1.OwnerReference{{UID: "uid-c"}}
		in.addresses = append(in.addresses, a)
	}
	status := func(in *found) *v1alpha1.NetworkPoolStatus { return in.mirrors[0].PoolStatus() }
	ready := func(in *found, reason string) {
		status(in).Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Reason: reason}}
	}
	granted := func(in *found) {
		status(in).Allocator = &v1alpha1.AllocatorStatus{InFlight: []v1alpha1.Grant{{Namespace: "ns", Name: "c", UID: "uid-c", First: "10.0.0.10", Last: "10.0.0.10"}}}
	}
	resting := func(in *found) {
		status(in).Cooling = []v1alpha1.CoolingGroup{{Until: metav1.NewTime(noon.Add(time.Minute)), Addresses: "10.0.0.9"}}
	}
	none := func(in *found) { in.claims, in.addresses, in.allocations = nil, nil, nil }
	// helps is what the plan says to do, each alone, after which nothing is in the way.
	helps := map[string][]func(*found){ // W29
		"a manager serves it":                       {func(in *found) { in.running = nil }},
		"a manager with the component":              {func(in *found) { ready(in, v1alpha1.NotServedReason) }, func(in *found) { in.managers = nil }},
		"who names the mirror":                      {none},
		"who was given something":                   {none},
		"a block":                                   {none},
		"a grant that may be on its way":            {func(in *found) { none(in); has(in, old, "c", "10.0.0.10") }, none},
		"what rests":                                {nil, func(in *found) { status(in).Cooling[0].Until = metav1.NewTime(noon) }}, // nil: --without-rests
		"what is no rest":                           {func(in *found) { status(in).Cooling[0].Addresses = "10.0.0.9" }, func(in *found) { status(in).Cooling = nil }},
		"what was handed over and is being deleted": {func(in *found) { in.deleting = nil }},
		"what was moved":                            {func(in *found) { status(in).Held = nil }},
	}
	for name, c := range map[string]struct {
		change  func(*found)
		without bool
		want    []string
		waiting []string
	}{
		"what is no rest": {change: func(in *found) {
			status(in).Cooling = []v1alpha1.CoolingGroup{{Until: metav1.NewTime(noon), Addresses: "ten"}}
		}, want: []string{`the status of NetworkPool ns/p.in-cluster has an entry that cannot be parsed: status.cooling: parsing "ten": "ten" is not an IP address`}},
		"nothing":                {},
		"who names the old pool": {change: func(in *found) { has(in, old, "c", "10.0.0.10") }},
		"a manager serves it":    {change: func(in *found) { in.running = []string{"pod -n x y"} }, want: []string{"a manager serves the pools: pod -n x y"}},
		"a manager with the component": {change: func(in *found) { in.managers = []string{"pod -n x y"}; ready(in, "Serving") },
			want: []string{"a manager serves NetworkPool ns/p.in-cluster: pod -n x y"}},
		"a manager without it":    {change: func(in *found) { in.managers = []string{"pod -n x y"}; ready(in, v1alpha1.NotServedReason) }},
		"a manager that is gone":  {change: func(in *found) { ready(in, "Serving") }},
		"who names the mirror":    {change: func(in *found) { has(in, direct, "c", "10.0.0.10") }, want: []string{"IPAddress ns/c has 10.0.0.10 of NetworkPool ns/p.in-cluster"}},
		"who was given something": {change: func(in *found) { claims(in, direct, "c", "10.0.0.10") }, want: []string{"IPAddressClaim ns/c was given 10.0.0.10 of NetworkPool ns/p.in-cluster"}},
		"who waits":               {change: func(in *found) { claims(in, direct, "c", "") }, waiting: []string{"IPAddressClaim ns/c"}},
		"a block": {change: func(in *found) {
			o := v1alpha1.IPAllocation{ObjectMeta: meta("b"), Spec: v1alpha1.IPAllocationSpec{PoolRef: v1alpha1.PoolReference{Name: "p.in-cluster"}}}
			o.Status.StartAddress = "10.0.0.8"
			in.allocations = append(in.allocations, o)
		}, want: []string{"IPAllocation ns/b has a block of NetworkPool ns/p.in-cluster"}},
		"a grant that may be on its way": {change: func(in *found) { granted(in); claims(in, old, "c", "") },
			want: []string{"IPAddressClaim ns/c was granted 10.0.0.10 of NetworkPool ns/p.in-cluster before the manager stopped, and its IPAddress was not written"}},
		"one that has landed":            {change: func(in *found) { granted(in); has(in, old, "c", "10.0.0.10") }},
		"one of which the claim is gone": {change: granted},
		"what rests":                     {change: resting, want: []string{"1 ranges of NetworkPool ns/p.in-cluster are in their reuse grace period until 2030-01-01T12:01:00Z, and the in-cluster provider would reuse them at once"}},
		"what need not rest":             {change: resting, without: true},
		"what has rested":                {change: func(in *found) { resting(in); status(in).Cooling[0].Until = metav1.NewTime(noon) }},
		"what was handed over and is being deleted": {change: func(in *found) {
			in.deleting = []source{{incluster.Kinds[0], client.ObjectKey{Namespace: "ns", Name: "p"}}}
		}, want: []string{"InClusterIPPool ns/p was handed over and is being deleted, so it cannot go back"}},
		"what was moved": {change: func(in *found) {
			status(in).Held = []v1alpha1.HeldRange{{First: "10.0.0.9", Last: "10.0.0.9", Reason: v1alpha1.MovedReason}}
		}, want: []string{"10.0.0.9-10.0.0.9 of NetworkPool ns/p.in-cluster is held (Moved), and the in-cluster provider would give it"}},
	} {
		t.Run(name, func(t *testing.T) {
			planned := func(without bool, changes ...func(*found)) *Plan {
				mirror := &v1alpha1.NetworkPool{ObjectMeta: meta("p.in-cluster")}
				mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPool, Name: "p", Controller: ptr.To(true)}}
				in := &found{mirrors: []v1alpha1.Pool{mirror}}
				for _, change := range changes {
					if change != nil {
						change(in)
					}
				}
				return plan(in, noon, without)
			}
			for i, do := range helps[name] {
				if p := planned(do == nil, c.change, do); len(p.Problems) > 0 {
					t.Errorf("after step %d: %+v", i, p.Problems)
				}
			}
			p := planned(c.without, c.change)
			var got []string
			for _, problem := range p.Problems {
				if problem.Do == "" {
					t.Errorf("nothing to do about %q", problem.What)
				}
				got = append(got, problem.What)
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

// What has the name of a mirror and belongs to somebody else is not handed back.
func TestSourceOf(t *testing.T) {
	for name, c := range map[string]struct {
		owner metav1.OwnerReference
		is    bool
	}{
		"a mirror":              {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPool, Name: "p", Controller: ptr.To(true)}, true},
		"of another pool":       {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPool, Name: "q", Controller: ptr.To(true)}, false},
		"not controlled":        {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPool, Name: "p"}, false},
		"of another group":      {metav1.OwnerReference{APIVersion: "x/v1", Kind: incluster.IPPool, Name: "p", Controller: ptr.To(true)}, false},
		"of another kind there": {metav1.OwnerReference{APIVersion: incluster.GroupVersion.String(), Kind: "Other", Name: "p", Controller: ptr.To(true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			mirror := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.in-cluster", OwnerReferences: []metav1.OwnerReference{c.owner}}}
			if _, is := sourceOf(mirror); is != c.is {
				t.Errorf("%t", is)
			}
		})
	}
}

// Pools are served in place where a mirror says so that was not handed over.
func TestServed(t *testing.T) {
	mirror := func(reason string) *v1alpha1.NetworkPool {
		p := &v1alpha1.NetworkPool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p.in-cluster", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: incluster.GroupVersion.String(), Kind: incluster.IPPool, Name: "p", Controller: ptr.To(true),
		}}}}
		if reason != "" {
			p.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ReadyCondition, Reason: reason}}
		}
		return p
	}
	given, somebodys := mirror("Serving"), mirror("Serving")
	given.Annotations = map[string]string{incluster.HandedOverAnnotation: ""}
	somebodys.OwnerReferences = nil
	for name, c := range map[string]struct {
		pools []v1alpha1.Pool
		want  bool
	}{
		"nothing":                        {},
		"a mirror":                       {[]v1alpha1.Pool{somebodys, mirror("Serving")}, true},
		"a pool with such a name":        {[]v1alpha1.Pool{somebodys}, false},
		"a mirror that is not looked at": {[]v1alpha1.Pool{mirror("")}, false},
		"a mirror that was left":         {[]v1alpha1.Pool{mirror(v1alpha1.NotServedReason)}, false},
		"a mirror that was handed over":  {[]v1alpha1.Pool{given}, false},
	} {
		if got := Served(c.pools); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
