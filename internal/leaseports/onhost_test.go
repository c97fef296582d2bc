package leaseports

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// TestAnnouncedReason checks the condition Announced of an address, depending on its lock.
func TestAnnouncedReason(t *testing.T) {
	alive := HostStatus{HasLock: true, Holder: "h1", Alive: true}
	withReport := func(h HostStatus, r record.Report) HostStatus { h.Report = &r; return h }
	with := func(h HostStatus, change func(*HostStatus)) HostStatus { change(&h); return h }
	announced := record.Report{Announced: true}
	inUse := record.PortReport{Protocol: corev1.ProtocolTCP, Port: 443, Reason: "PortInUseOnHost", Message: "sshd has it"}
	portFull := record.PortReport{Protocol: corev1.ProtocolUDP, Port: 53, Reason: "PortFull", Message: "many ask"}
	for name, c := range map[string]struct {
		h         HostStatus
		waited    bool
		want      string // empty if nothing new is known
		hasReport bool
	}{
		"a host has it":                       {h: withReport(alive, announced), want: "Announced: host h1 has the address", hasReport: true},
		"it is about to":                      {h: alive},
		"it is about to, for long":            {h: alive, waited: true, want: "NoHost: host h1 has locked the address, and does not report"},
		"it cannot":                           {h: withReport(alive, record.Report{Reason: "AddressInUse", Message: "m"}), want: "AddressInUse: m", hasReport: true},
		"it has, and another claims it":       {h: withReport(alive, record.Report{Announced: true, Reason: "Contested", Message: "m"}), want: "Contested: m", hasReport: true},
		"it says what is no reason":           {h: withReport(alive, record.Report{Reason: "not a reason!", Message: "m"}), want: "HostError: m", hasReport: true},
		"all but one port":                    {h: withReport(alive, record.Report{Announced: true, Ports: []record.PortReport{inUse}}), want: "PortInUseOnHost: host h1 has the address, and TCP/443 is not served: sshd has it", hasReport: true},
		"a port is full":                      {h: withReport(alive, record.Report{Announced: true, Ports: []record.PortReport{portFull}}), want: "Announced: host h1 has the address, and UDP/53 is full: many ask", hasReport: true},
		"one is full, one is not served":      {h: withReport(alive, record.Report{Announced: true, Ports: []record.PortReport{portFull, inUse}}), want: "PortInUseOnHost: host h1 has the address, and TCP/443 is not served: sshd has it; UDP/53 is full: many ask", hasReport: true},
		"it was not seen yet":                 {h: with(withReport(alive, announced), func(h *HostStatus) { h.Alive = false })},
		"it is silent":                        {h: with(withReport(alive, announced), func(h *HostStatus) { h.Alive, h.Silent = false, true })},
		"it is silent, for long":              {h: with(withReport(alive, announced), func(h *HostStatus) { h.Alive, h.Silent = false, true }), waited: true, want: "NoHost: host h1, which had the address, is silent"},
		"it is silent, and another could ask": {h: with(withReport(alive, announced), func(h *HostStatus) { h.Alive, h.Silent, h.ReachableByOther = false, true, true })},
		"the same, for long":                  {h: with(withReport(alive, announced), func(h *HostStatus) { h.Alive, h.Silent, h.ReachableByOther = false, true, true }), waited: true, want: "Contested: host h1, which has the address, is silent, and no other host takes it. If that host"},
		"the same, for Nodes with endpoints": {h: with(withReport(alive, announced), func(h *HostStatus) {
			h.Alive, h.Silent, h.ReachableByOther, h.RequiresLocalEndpoint = false, true, true, true
		}), waited: true, want: "NoHost: "},
		"no lock":                              {h: HostStatus{}},
		"no lock, for long":                    {h: HostStatus{}, waited: true, want: "NoHost: no host has the address; run butler-host-lb"},
		"no lock, for long, of local Services": {h: HostStatus{RequiresLocalEndpoint: true}, waited: true, want: "NoHost: no host has the address; butler-host-lb has to run on a Node"},
		"given up with a reason":               {h: withReport(HostStatus{HasLock: true}, record.Report{Reason: "NoCommonNode", Message: "m"}), want: "NoCommonNode: m"},
		"given up":                             {h: withReport(HostStatus{HasLock: true}, announced)},
		"it cannot be read, for long":          {h: HostStatus{HasLock: true, LockProblem: "no JSON"}, waited: true, want: "NoHost: no JSON; delete that Lease"},
	} {
		got := c.h.AnnouncedReason(c.waited)
		if text := got.Reason + ": " + got.Message; (c.want == "") != (got == Reason{}) || !strings.HasPrefix(text, c.want) {
			t.Errorf("%s: %s", name, text)
		}
		if c.h.HasReport() != c.hasReport {
			t.Errorf("%s: that a host says so is %v", name, c.h.HasReport())
		}
	}
}

// TestDrainingReason checks P6: what keeps a lease that is being deleted.
func TestDrainingReason(t *testing.T) {
	for name, c := range map[string]struct {
		h    HostStatus
		want string // empty if nothing keeps it
	}{
		"no lock":                           {h: HostStatus{}},
		"empty":                             {h: HostStatus{HasLock: true}},
		"a host has it":                     {h: HostStatus{HasLock: true, Holder: "h1", Alive: true}, want: "Confirming: host h1 is removing the address"},
		"one that was not seen yet":         {h: HostStatus{HasLock: true, Holder: "h1"}, want: "Confirming: host h1 is removing"},
		"one that is silent":                {h: HostStatus{HasLock: true, Holder: "h1", Silent: true}, want: "HostSilent: host h1 had the address"},
		"one that is silent, of two":        {h: HostStatus{HasLock: true, Holder: "h1", Silent: true, ReachableByOther: true}, want: "Confirming: host h1 had the address, and another host probes"},
		"released, and no probe":            {h: HostStatus{HasLock: true, PreviousHolder: "h1"}, want: "HostSilent: host h1 had the address"},
		"released, and a probe is due":      {h: HostStatus{HasLock: true, PreviousHolder: "h1", ReachableByOther: true}, want: "Confirming: host h1 had the address, and another host probes"},
		"it cannot be read":                 {h: HostStatus{HasLock: true, LockProblem: "no JSON"}, want: "Confirming: no JSON, so it is not known"},
		"it cannot be read, nor its holder": {h: HostStatus{HasLock: true, LockProblem: "no JSON", Holder: "h1", Silent: true}, want: "Confirming: no JSON"},
	} {
		got := c.h.DrainingReason()
		if text := got.Reason + ": " + got.Message; (c.want == "") != (got == Reason{}) || !strings.HasPrefix(text, c.want) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// TestPortsOfReport checks which Services get an event for a problem, and how the status of a Service names it.
func TestPortsOfReport(t *testing.T) {
	h := HostStatus{Holder: "h1", Alive: true, Report: &record.Report{Announced: true, Ports: []record.PortReport{{Protocol: corev1.ProtocolTCP, Port: 443, Reason: "PortInUseOnHost"}}}}
	if !h.ConcernsPort(tcp(443)) || h.ConcernsPort(tcp(80)) {
		t.Error("one port is wrong")
	}
	if diff := cmp.Diff(map[Port]string{tcp(443): "butler.butlerlabs.dev/PortInUseOnHost"}, h.PortErrors()); diff != "" {
		t.Error(diff)
	}
	h.Report.Ports = append(h.Report.Ports, record.PortReport{Protocol: corev1.ProtocolUDP, Port: 53, Reason: "PortFull"})
	if len(h.PortErrors()) != 1 || len(h.FullPorts()) != 1 || !h.ConcernsPort(udp(53)) {
		t.Error("a port that is full is served, and its Service is reported")
	}
	h.Report.Reason = "Contested"
	if !h.ConcernsPort(tcp(80)) {
		t.Error("the address concerns all ports")
	}
	if h.Alive = false; len(h.PortErrors()) > 0 {
		t.Error("a host that is not alive says nothing")
	}
}

func TestNewIngress(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	s := &Service{Ports: []Port{tcp(80), tcp(443)}}
	want := []corev1.LoadBalancerIngress{
		{IP: "10.0.0.1", Ports: []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 443, Protocol: corev1.ProtocolTCP, Error: ptr.To("x/Y")}}},
		{IP: "fd00::1", Ports: []corev1.PortStatus{{Port: 80, Protocol: corev1.ProtocolTCP}, {Port: 443, Protocol: corev1.ProtocolTCP}}},
	}
	got := NewIngress(s, []netip.Addr{four, six}, map[netip.Addr]map[Port]string{four: {tcp(443): "x/Y"}})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: want}}}
	service = service.DeepCopy()
	service.Status.LoadBalancer.Ingress[0].IPMode = ptr.To(corev1.LoadBalancerIPModeVIP) // the API server's default
	if !IsSameIngress(got, service.Status.LoadBalancer.Ingress) {
		t.Error("the default is a change")
	}
	if !StatusHasPort(service, six, tcp(443)) || StatusHasPort(service, six, tcp(81)) || StatusHasPort(service, netip.MustParseAddr("10.0.0.2"), tcp(80)) {
		t.Error("it shows other ports")
	}
	if diff := cmp.Diff(map[Port]string{tcp(80): "", tcp(443): "x/Y"}, StatusPortErrors(service, four)); diff != "" {
		t.Error(diff)
	}
	for name, change := range map[string]func(*corev1.LoadBalancerIngress){
		"mode":  func(in *corev1.LoadBalancerIngress) { in.IPMode = ptr.To(corev1.LoadBalancerIPModeProxy) },
		"port":  func(in *corev1.LoadBalancerIngress) { in.Ports[0].Port = 81 },
		"error": func(in *corev1.LoadBalancerIngress) { in.Ports[1].Error = nil },
		"name":  func(in *corev1.LoadBalancerIngress) { in.Hostname = "x" },
	} {
		other := service.DeepCopy().Status.LoadBalancer.Ingress
		if change(&other[0]); IsSameIngress(got, other) {
			t.Errorf("another %s is none", name)
		}
	}
}

// TestUnservedService checks that a Service that is not served gets nothing, and loses nothing.
func TestUnservedService(t *testing.T) {
	off := func(s Service) Service { s.NotServedMessage = "no flag"; return s }
	holder, wants := off(serviceOf("a", 0, []string{"shop"}, tcp(80))), off(serviceOf("b", 1, []string{"shop"}, tcp(443)))
	lease := leaseOf("shop", "10.0.0.1")
	lease.PortTable = []Holder{heldPort(tcp(80), "a")}
	d := DecidePorts([]Lease{lease}, []Service{holder, wants}, func(string, Holder) bool { return true })
	if diff := cmp.Diff([]Holder{heldPort(tcp(80), "a")}, d.PortTables["shop"]); diff != "" {
		t.Error(diff)
	}
	for _, s := range []Service{holder, wants} {
		if got := d.Reasons[s.UID]; got != (Reason{"NotServed", "no flag"}) {
			t.Errorf("the reason of %s is %v", s.Name, got)
		}
	}
	// A Service of a class keeps the lease that was created for it, and none is created.
	of := off(Service{ServiceRef: ServiceRef{Name: "c"}, UID: "uid-c", LoadBalancerClass: "x", Families: []int{4, 6}})
	made := leaseOf("c-ipv4", "10.0.0.2")
	made.MadeForServices, made.OnlyService = true, "c"
	services, out, _ := PlanLeases([]Service{of}, []Lease{made}, []Pool{{LoadBalancerClass: "x", Family: 6, IsOpen: true, AvailableIPs: 9}}, serviceOf("a", 0, nil).Created)
	if diff := cmp.Diff([]string{"c-ipv4"}, services[0].LeaseNames); diff != "" || len(out) > 0 {
		t.Errorf("%s; made: %v", diff, out)
	}
	if unused := FindUnusedLeases([]Lease{made}, services); len(unused) > 0 {
		t.Error("its lease is of no use")
	}
}
