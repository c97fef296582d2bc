package leaseports

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// TestRefusedServiceMessagesNameStepsThatHelp checks W29: a Service that is refused a port gets it when the advice of
// its condition is followed.
func TestRefusedServiceMessagesNameStepsThatHelp(t *testing.T) {
	type world struct {
		leases   []Lease
		services []Service // the first one has the condition
	}
	lease := func(w *world, i int) *Lease { return &w.leases[i] }
	names := func(leases ...string) func(*world) { return func(w *world) { w.services[0].LeaseNames = leases } }
	drop := func(i int) func(*world) { return func(w *world) { w.services = slices.Delete(w.services, i, i+1) } }
	port := func(p Port) func(*world) { return func(w *world) { w.services[0].Ports = []Port{p} } }
	families := func(f ...int) func(*world) {
		return func(w *world) {
			w.services[0].Families, w.services[0].PrefersDualStack, w.services[0].RequiresDualStack = f, false, false
		}
	}
	both := func(w *world) {
		w.services[0].LeaseNames = []string{"shop", "six"}
		w.services[0].Families = []int{4, 6}
	}
	selects := func(name string, leases ...int) func(*world) {
		return func(w *world) {
			for _, i := range leases {
				lease(w, i).NamespaceSelector, lease(w, i).SelectorText = labels.SelectorFromSet(labels.Set{"is": name}), name
			}
		}
	}
	newWorldWith := func(f ...func(*world)) func() *world {
		return func() *world {
			w := &world{
				leases:   []Lease{leaseOf("shop", "10.0.0.1"), leaseOf("six", "fd00::1"), leaseOf("more", "10.0.0.2")},
				services: []Service{serviceOf("a", 9, []string{"shop"}, tcp(80))},
			}
			for _, change := range f {
				change(w)
			}
			return w
		}
	}
	otherServiceWith := func(p Port, lease ...string) func(*world) {
		return func(w *world) { w.services = append(w.services, serviceOf("b", 0, lease, p)) }
	}
	declared := func(w *world) { lease(w, 0).DeclaredPorts = map[Port]ServiceRef{tcp(443): {}} }
	usurped := func(w *world) {
		lease(w, 0).UsurpedPorts = map[Port]ServiceRef{tcp(80): {Namespace: "other", Name: "thief"}}
	}
	full := func(w *world) {
		big := serviceOf("big", 0, []string{"shop"})
		for i := range v1alpha1.MaxLeasedPorts {
			big.Ports = append(big.Ports, tcp(int32(1000+i)))
			w.leases[0].PortTable = append(w.leases[0].PortTable, heldPort(tcp(int32(1000+i)), "big"))
		}
		w.services = append(w.services, big)
	}
	prefers := func(w *world) { w.services[0].PrefersDualStack = true }
	shown := func(w *world) { lease(w, 1).ShownBy, lease(w, 1).ShownByMetalLB = v1alpha1.ShownByMetalLB, true }

	for name, c := range map[string]struct {
		newWorld    func() *world
		wantMessage string
		do          []func(*world) // each of them alone
	}{
		"the port is not declared": {newWorldWith(declared), "add it there, or use another port", []func(*world){
			func(w *world) { lease(w, 0).DeclaredPorts[tcp(80)] = ServiceRef{} }, port(tcp(443)),
		}},
		"the port is taken":            {newWorldWith(otherServiceWith(tcp(80), "shop")), "choose another port or lease", []func(*world){port(tcp(81)), names("more")}},
		"the port is shown by another": {newWorldWith(usurped), "If that lasts, delete that Service", []func(*world){func(w *world) { lease(w, 0).UsurpedPorts = nil }}},
		"the lease has many ports":     {newWorldWith(full), "use another lease", []func(*world){names("more")}},
		"there is no lease": {newWorldWith(names("none")), "create it, or correct the annotation", []func(*world){
			func(w *world) { w.leases = append(w.leases, leaseOf("none", "10.0.0.9")) }, names("shop"),
		}},
		"the lease was made for another": {newWorldWith(func(w *world) { lease(w, 0).MadeForServices, lease(w, 0).OnlyService = true, "b" }), "make a lease that both may name", []func(*world){names("more")}},
		"the lease is being deleted":     {newWorldWith(func(w *world) { lease(w, 0).Deleting = true }), "name another", []func(*world){names("more")}},
		"an older lease has the address": {newWorldWith(names("twin"), func(w *world) { w.leases = append(w.leases, leaseOf("twin", "10.0.0.1")) }), "name that one, or correct the pools", []func(*world){
			names("shop"), func(w *world) { w.leases[3].Address = netip.MustParseAddr("10.0.0.9") },
		}},
		"others show the lease": {newWorldWith(func(w *world) { lease(w, 0).ShownBy = v1alpha1.ShownByHost }), "name another lease, or give the Service the spec.loadBalancerClass that goes with it", []func(*world){
			names("more"), func(w *world) { w.services[0].ShownBy = v1alpha1.ShownByHost },
		}},
		"the lease is of another family":  {newWorldWith(names("six")), "name a lease of another family", []func(*world){names("shop")}},
		"the leases are of one family":    {newWorldWith(names("shop", "more"), func(w *world) { w.services[0].Families = []int{4, 6}; w.services[0].ShownBy = v1alpha1.ShownByHost }), "name one of each, or one", []func(*world){names("shop", "six"), names("shop")}},
		"the leases differ in namespaces": {newWorldWith(both, selects("x", 0)), "give both the same", []func(*world){selects("x", 0, 1)}},
		"both families are required":      {newWorldWith(func(w *world) { w.services[0].Families, w.services[0].RequiresDualStack = []int{4, 6}, true }), "name one of each", []func(*world){names("shop", "six")}},
		"the Service has both families":   {newWorldWith(func(w *world) { w.services[0].Families = []int{4, 6} }), "name a lease of each, or set ipFamilyPolicy SingleStack", []func(*world){names("shop", "six"), families(4)}},
		"it would get another's too":      {newWorldWith(prefers, shown), "name a lease of each, or set ipFamilyPolicy SingleStack", []func(*world){both, families(4)}},
		"another would get its lease": {newWorldWith(names("six"), families(6), func(w *world) {
			b := serviceOf("b", 0, []string{"shop"}, tcp(80))
			b.PrefersDualStack = true
			w.services = append(w.services, b)
		}), "give that Service a lease of each, or ipFamilyPolicy SingleStack", []func(*world){
			func(w *world) {
				w.services[1].LeaseNames, w.services[1].Families, w.services[1].Ports = []string{"shop", "six"}, []int{4, 6}, []Port{tcp(81)}
			},
			func(w *world) { w.services[1].PrefersDualStack = false },
			drop(1),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			reasonFor := func(w *world) Reason {
				return DecidePorts(w.leases, w.services, func(string, Holder) bool { return false }).Reasons[w.services[0].UID]
			}
			if v := reasonFor(c.newWorld()); v.Reason == v1alpha1.GrantedReason || !strings.Contains(v.Message, c.wantMessage) {
				t.Fatalf("its reason is %+v", v)
			}
			for i, do := range c.do {
				w := c.newWorld()
				do(w)
				if v := reasonFor(w); v.Reason != v1alpha1.GrantedReason {
					t.Errorf("after step %d its reason is %+v", i, v)
				}
			}
		})
	}
}

// TestInvalidServiceMessagesNameStepsThatHelp checks W29: what is wrong with how a Service requests a lease is right
// when it is changed as the condition advises.
func TestInvalidServiceMessagesNameStepsThatHelp(t *testing.T) {
	const ours = "butler.butlerlabs.dev/metallb"
	address := func(text string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.LoadBalancerIP = text }
	}
	of := func(s *corev1.Service) { s.Annotations, s.Spec.LoadBalancerClass = nil, ptr.To(ours) }
	for name, c := range map[string]struct {
		changes     []func(*corev1.Service)
		wantMessage string
		do          []func(*corev1.Service)
	}{
		"an address beside a lease": {[]func(*corev1.Service){address("10.0.0.1")}, "remove that", []func(*corev1.Service){address("")}},
		"an address that is none":   {[]func(*corev1.Service){of, address("ten")}, "correct it, or remove it for any address", []func(*corev1.Service){address("10.0.0.1"), address("")}},
	} {
		a, _ := ParseServiceRequest(newTestService("shop", c.changes...))
		if !strings.Contains(a.Problem, c.wantMessage) {
			t.Errorf("%s: %+v", name, a)
		}
		for _, do := range c.do {
			if a, asks := ParseServiceRequest(newTestService("shop", append(slices.Clone(c.changes), do)...)); !asks || a.Problem != "" {
				t.Errorf("%s: %+v", name, a)
			}
		}
	}
}

// TestExhaustedMessageNamesStepThatHelps checks W29: a lease whose address is in use elsewhere has it when it is
// free, or another address when attempts are allowed again.
func TestExhaustedMessageNamesStepThatHelps(t *testing.T) {
	of := func() (Lease, Service) {
		l, s := leaseOf("web-ipv4", "10.0.0.1"), serviceOf("web", 0, []string{"web-ipv4"}, tcp(80))
		l.MadeForServices, l.OnlyService, l.AddressInUse, s.LoadBalancerClass, s.TriedAddresses = true, "web", true, class, addresses("10.0.0.9", "10.0.0.1")
		return l, s
	}
	l, s := of()
	if message := DecideNextAddress(&l, &s, 2).ExhaustedReason.Message; !strings.Contains(message, "remove 10.0.0.1 from the machine that has it, or free another one and remove the annotation "+v1alpha1.TriedAddressesAnnotation) {
		t.Error(message)
	}
	if l.AddressInUse = false; DecideNextAddress(&l, &s, 2) != (NextAddressStep{}) {
		t.Error("the address is free, and another is asked for")
	}
	l, s = of()
	s.TriedAddresses = nil
	first := DecideNextAddress(&l, &s, 2)
	s.TriedAddresses = addresses("10.0.0.1")
	if next := DecideNextAddress(&l, &s, 2); !first.RecordTried || !next.ReplaceLease {
		t.Errorf("it is not tried again: %+v, %+v", first, next)
	}
}

// TestHostMessagesNameStepsThatHelp checks W29: an address that no host has, or may have, is announced, or released,
// when the advice of the condition is followed.
func TestHostMessagesNameStepsThatHelp(t *testing.T) {
	announces := HostStatus{HasLock: true, Holder: "h2", Alive: true, Report: &record.Report{Announced: true}}
	for name, c := range map[string]struct {
		h           HostStatus
		wantMessage string
	}{
		"the lock cannot be read":   {HostStatus{HasLock: true, LockProblem: "no JSON"}, "delete that Lease, the hosts make it again"},
		"its host is silent":        {HostStatus{HasLock: true, Holder: "h1", Silent: true}, "start butler-host-lb there again, or on another host of its subnet"},
		"its host does not show it": {HostStatus{HasLock: true, Holder: "h1", Alive: true}, "see the log of butler-host-lb there"},
		"no host has the address":   {HostStatus{}, "run butler-host-lb on one that has an address of the same subnet"},
		"no host has local Service": {HostStatus{RequiresLocalEndpoint: true}, "butler-host-lb has to run on a Node that has an address of the same subnet"},
	} {
		if v := c.h.AnnouncedReason(true); v.Reason != v1alpha1.NoHostReason || !strings.Contains(v.Message, c.wantMessage) {
			t.Errorf("%s: %+v", name, v)
		}
	}
	cut := HostStatus{HasLock: true, Holder: "h1", Silent: true, ReachableByOther: true}
	if v := cut.AnnouncedReason(true); v.Reason != v1alpha1.ContestedReason || !strings.Contains(v.Message, "restore its way there, or stop butler-host-lb on it") {
		t.Errorf("%+v", v)
	}
	if v := announces.AnnouncedReason(true); v.Reason != v1alpha1.AnnouncedReason { // this is what such a host reports
		t.Errorf("%+v", v)
	}
	for name, c := range map[string]struct {
		h, done     HostStatus
		wantMessage string
		reason      string
	}{
		"the lock cannot be read": {HostStatus{HasLock: true, LockProblem: "no JSON"}, HostStatus{HasLock: true}, "correct its annotation", ""},
		"its host is silent":      {HostStatus{HasLock: true, PreviousHolder: "h1"}, HostStatus{HasLock: true, PreviousHolder: "h1", ReachableByOther: true}, "start butler-host-lb on a host of its subnet", v1alpha1.ConfirmingReason},
	} {
		if v := c.h.DrainingReason(); !strings.Contains(v.Message, c.wantMessage) {
			t.Errorf("%s: %+v", name, v)
		}
		if v := c.done.DrainingReason(); v.Reason != c.reason {
			t.Errorf("%s: afterwards %+v", name, v)
		}
	}
}
