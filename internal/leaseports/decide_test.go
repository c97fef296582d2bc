package leaseports

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func tcp(n int32) Port { return Port{corev1.ProtocolTCP, n} }
func udp(n int32) Port { return Port{corev1.ProtocolUDP, n} }

// serviceOf returns a Service of IPv4 that was created second seconds after noon.
func serviceOf(name string, second int, leases []string, ports ...Port) Service {
	return Service{ServiceRef: ServiceRef{Name: name}, UID: types.UID("uid-" + name), Created: noon.Add(time.Duration(second) * time.Second), LeaseNames: leases, Ports: ports, Families: []int{4}, ShownBy: v1alpha1.ShownByMetalLB}
}

func leaseOf(name, address string, table ...Holder) Lease {
	out := Lease{Name: name, PortTable: table}
	if address != "" {
		out.Address = netip.MustParseAddr(address)
	}
	return out
}

func heldPort(p Port, service string) Holder {
	return Holder{p, ServiceRef{Name: service}, types.UID("uid-" + service)}
}

func TestDecidePorts(t *testing.T) { // H7, H9
	shop, both := []string{"shop"}, []string{"shop", "shop-6"}
	plain, six := leaseOf("shop", "10.0.0.1"), leaseOf("shop-6", "fd00::1")
	dual := func(s Service) Service { s.Families = []int{4, 6}; return s }
	requires := func(s Service) Service { s.RequiresDualStack = true; return dual(s) }
	with := func(l Lease, table ...Holder) Lease { l.PortTable = table; return l }
	deleting := func(l Lease) Lease { l.Deleting = true; return l }
	declares := func(l Lease, ports map[Port]string) Lease {
		l.DeclaredPorts = map[Port]ServiceRef{}
		for p, name := range ports {
			l.DeclaredPorts[p] = ServiceRef{Name: name}
		}
		return l
	}
	open := func(l Lease) Lease {
		l.NamespaceSelector, l.SelectorText = labels.SelectorFromSet(labels.Set{"is": "other"}), "other"
		return l
	}
	from := func(namespace string, s Service) Service {
		s.Namespace, s.NamespaceLabels = namespace, labels.Set{"is": namespace}
		s.UID = types.UID("uid-" + s.Name)
		return s
	}
	prefers := func(s Service) Service { s.PrefersDualStack = true; return s }
	ofSix := func(s Service) Service { s.Families = []int{6}; return s }
	byHosts := func(s Service) Service { s.ShownBy = v1alpha1.ShownByHost; return s }
	up := func(l Lease) Lease { l.ShownBy, l.ShownByMetalLB = v1alpha1.ShownByMetalLB, true; return l }
	again := func(s Service) Service { s.UID = "uid-again"; return s }
	declaresFor := func(l Lease, r ServiceRef) Lease { l.DeclaredPorts = map[Port]ServiceRef{tcp(80): r}; return l }
	invalid := func(l Lease) Lease { l.SelectorError = "no"; return l }
	unmade := func(s Service) Service { s.LoadBalancerClass, s.LeaseCreateError = class, "quota"; return s }
	madeFor := func(l Lease, service string) Lease { l.MadeForServices, l.OnlyService = true, service; return l }
	shownBy := func(l Lease, by string) Lease { l.ShownBy = by; return l }
	refused := func(l Lease, reason string) Lease { l.Refusal = Reason{reason, "no"}; return l }
	waiting := func(s Service) Service { s.WaitReason = Reason{"NoPool", "none"}; return s }
	wrong := func(s Service, text string) Service { s.LeaseNames, s.RequestProblem = nil, text; return s }
	usurped := func(l Lease, p Port, by ServiceRef) Lease { l.UsurpedPorts = map[Port]ServiceRef{p: by}; return l }
	withAddress := func(s Service) Service { s.StatusAddresses = []netip.Addr{plain.Address}; return s }
	thief := ServiceRef{"other", "thief"}
	for name, c := range map[string]struct {
		leases   []Lease
		services []Service
		free     bool
		// want are the conditions of the Services, in their order; table are the holders of the ports of shop.
		want  []string
		table []Holder
	}{
		"one":                             {leases: []Lease{plain}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"Granted: has TCP/80 of 10.0.0.1"}, table: []Holder{heldPort(tcp(80), "a")}},
		"two ports of a Service":          {leases: []Lease{plain}, services: []Service{serviceOf("a", 0, shop, tcp(443), tcp(80))}, want: []string{"Granted: has TCP/443, TCP/80 of 10.0.0.1"}, table: []Holder{heldPort(tcp(80), "a"), heldPort(tcp(443), "a")}},
		"tcp and udp 53":                  {leases: []Lease{plain}, services: []Service{serviceOf("a", 0, shop, tcp(53)), serviceOf("b", 0, shop, udp(53))}, want: []string{"Granted", "Granted"}, table: []Holder{heldPort(tcp(53), "a"), heldPort(udp(53), "b")}},
		"the older one":                   {leases: []Lease{plain}, services: []Service{serviceOf("young", 9, shop, tcp(80)), serviceOf("old", 0, shop, tcp(80))}, want: []string{"PortTaken: 10.0.0.1 TCP/80 is already allocated to Service old; choose another port or lease", "Granted"}, table: []Holder{heldPort(tcp(80), "old")}},
		"who has it keeps it":             {leases: []Lease{with(plain, heldPort(tcp(80), "young"))}, services: []Service{serviceOf("young", 9, shop, tcp(80)), serviceOf("old", 0, shop, tcp(80))}, want: []string{"Granted", "PortTaken"}, table: []Holder{heldPort(tcp(80), "young")}},
		"all or none":                     {leases: []Lease{plain}, services: []Service{serviceOf("old", 0, shop, tcp(80)), serviceOf("young", 9, shop, tcp(80), tcp(81))}, want: []string{"Granted", "PortTaken"}, table: []Holder{heldPort(tcp(80), "old")}},
		"more ports later":                {leases: []Lease{with(plain, heldPort(tcp(80), "a"), heldPort(tcp(443), "b"))}, services: []Service{serviceOf("a", 9, shop, tcp(80), tcp(81), udp(80)), serviceOf("b", 0, shop, tcp(443))}, want: []string{"Granted: has TCP/80, TCP/81, UDP/80 of 10.0.0.1", "Granted"}, table: []Holder{heldPort(tcp(80), "a"), heldPort(tcp(81), "a"), heldPort(tcp(443), "b"), heldPort(udp(80), "a")}},
		"what it has, and one more":       {leases: []Lease{with(plain, heldPort(tcp(80), "a"), heldPort(tcp(81), "b"))}, services: []Service{serviceOf("a", 0, shop, tcp(80), tcp(81)), serviceOf("b", 1, shop, tcp(81))}, want: []string{"PortTaken", "Granted"}, table: []Holder{heldPort(tcp(80), "a"), heldPort(tcp(81), "b")}},
		"made again":                      {leases: []Lease{with(plain, Holder{tcp(80), ServiceRef{Name: "a"}, "uid-before"})}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"gone, and not proven":            {leases: []Lease{with(plain, heldPort(tcp(80), "gone"))}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"PortTaken: 10.0.0.1 TCP/80 is already allocated to Service gone"}, table: []Holder{heldPort(tcp(80), "gone")}},
		"gone":                            {leases: []Lease{with(plain, heldPort(tcp(80), "gone"))}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, free: true, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"asks no more, and is proven":     {leases: []Lease{with(plain, heldPort(tcp(80), "a"))}, services: []Service{serviceOf("a", 0, nil, tcp(80))}, free: true, want: []string{""}},
		"no lease":                        {services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"LeaseNotFound: there is no IPLease shop in this namespace"}},
		"no address":                      {leases: []Lease{leaseOf("shop", "")}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"LeaseNotReady: IPLease shop has no address yet"}},
		"being deleted":                   {leases: []Lease{deleting(with(plain, heldPort(tcp(80), "a")))}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"LeaseNotReady: IPLease shop is being deleted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"declared":                        {leases: []Lease{declares(plain, map[Port]string{tcp(80): ""})}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 0, shop, tcp(81))}, want: []string{"Granted", "NotDeclared: spec.ports of IPLease shop has no TCP/81 for this Service"}, table: []Holder{heldPort(tcp(80), "a")}},
		"declared for another":            {leases: []Lease{declares(plain, map[Port]string{tcp(80): "b"})}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 9, shop, tcp(80))}, want: []string{"NotDeclared", "Granted"}, table: []Holder{heldPort(tcp(80), "b")}},
		"handed over, and shown":          {leases: []Lease{declares(with(plain, heldPort(tcp(80), "a")), map[Port]string{tcp(80): "b"})}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 9, shop, tcp(80))}, want: []string{"NotDeclared", "PortTaken"}, table: []Holder{heldPort(tcp(80), "a")}},
		"handed over":                     {leases: []Lease{declares(with(plain, heldPort(tcp(80), "a")), map[Port]string{tcp(80): "b"})}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 9, shop, tcp(80))}, free: true, want: []string{"NotDeclared", "Granted"}, table: []Holder{heldPort(tcp(80), "b")}},
		"two families":                    {leases: []Lease{plain, six}, services: []Service{requires(serviceOf("a", 0, both, tcp(80)))}, want: []string{"Granted: has TCP/80 of 10.0.0.1 and fd00::1"}, table: []Holder{heldPort(tcp(80), "a")}},
		"one of two, as preferred":        {leases: []Lease{plain}, services: []Service{dual(serviceOf("a", 0, shop, tcp(80)))}, want: []string{"LeaseUnfit: the Service has addresses of both families, and a lease of one; MetalLB gives it both or none"}},
		"one of two, by hosts":            {leases: []Lease{plain}, services: []Service{byHosts(dual(serviceOf("a", 0, shop, tcp(80))))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"one of two, as required":         {leases: []Lease{plain}, services: []Service{requires(serviceOf("a", 0, shop, tcp(80)))}, want: []string{"LeaseUnfit: the Service requires both families"}},
		"another family":                  {leases: []Lease{six}, services: []Service{serviceOf("a", 0, []string{"shop-6"}, tcp(80))}, want: []string{"LeaseUnfit: IPLease shop-6 has an IPv6 address"}},
		"two of one family":               {leases: []Lease{plain, leaseOf("more", "10.0.0.2")}, services: []Service{dual(serviceOf("a", 0, []string{"shop", "more"}, tcp(80)))}, want: []string{"LeaseUnfit: the leases shop and more are of one family"}},
		"taken of the other lease":        {leases: []Lease{plain, with(six, heldPort(tcp(80), "b"))}, services: []Service{dual(serviceOf("a", 0, both, tcp(80))), ofSix(serviceOf("b", 9, []string{"shop-6"}, tcp(80)))}, want: []string{"PortTaken: fd00::1 TCP/80", "Granted"}},
		"shown by one without it":         {leases: []Lease{usurped(plain, tcp(80), thief)}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 1, shop, tcp(81))}, want: []string{"PortTaken: 10.0.0.1 TCP/80 is shown by Service other/thief, to which it was not given", "Granted"}, table: []Holder{heldPort(tcp(81), "b")}},
		"it has it, and another shows it": {leases: []Lease{usurped(with(plain, heldPort(tcp(80), "a")), tcp(80), thief)}, services: []Service{withAddress(serviceOf("a", 0, shop, tcp(80)))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"it had it, and another shows it": {leases: []Lease{usurped(with(plain, heldPort(tcp(80), "a")), tcp(80), thief)}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"PortTaken"}, table: []Holder{heldPort(tcp(80), "a")}},
		"it shows it itself":              {leases: []Lease{usurped(plain, tcp(80), ServiceRef{Name: "a"})}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"a problem":                       {leases: []Lease{plain}, services: []Service{wrong(serviceOf("a", 0, nil, tcp(80)), "it is odd")}, want: []string{"LeaseUnfit: it is odd"}},
		"of another namespace":            {leases: []Lease{open(plain)}, services: []Service{from("other", serviceOf("a", 0, shop, tcp(80)))}, want: []string{"Granted"}, table: []Holder{{tcp(80), ServiceRef{"other", "a"}, "uid-a"}}},
		"of one that it does not select":  {leases: []Lease{open(plain)}, services: []Service{from("wrong", serviceOf("a", 0, shop, tcp(80)))}, want: []string{"NotAllowed: there is no IPLease shop that Services of namespace wrong may use"}},
		"of one, without a selector":      {leases: []Lease{plain}, services: []Service{from("other", serviceOf("a", 0, shop, tcp(80)))}, want: []string{"NotAllowed"}},
		"of one, and there is none":       {services: []Service{from("other", serviceOf("a", 0, shop, tcp(80)))}, want: []string{"NotAllowed"}},
		"of one that is selected no more": {leases: []Lease{with(open(plain), Holder{tcp(80), ServiceRef{"wrong", "a"}, "uid-a"})}, services: []Service{from("wrong", serviceOf("a", 0, shop, tcp(80)))}, want: []string{"NotAllowed"}, table: []Holder{{tcp(80), ServiceRef{"wrong", "a"}, "uid-a"}}},
		"two of one name":                 {leases: []Lease{open(plain)}, services: []Service{from("other", serviceOf("a", 0, shop, tcp(80))), again(serviceOf("a", 9, shop, tcp(80)))}, want: []string{"Granted", "PortTaken: 10.0.0.1 TCP/80 is already allocated to Service other/a"}, table: []Holder{{tcp(80), ServiceRef{"other", "a"}, "uid-a"}}},
		"declared for another namespace":  {leases: []Lease{declaresFor(open(plain), ServiceRef{"other", "a"})}, services: []Service{from("other", serviceOf("a", 0, shop, tcp(80))), serviceOf("b", 0, shop, tcp(80))}, want: []string{"Granted", "NotDeclared"}, table: []Holder{{tcp(80), ServiceRef{"other", "a"}, "uid-a"}}},
		"made for it":                     {leases: []Lease{madeFor(plain, "a")}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 0, shop, tcp(81))}, want: []string{"Granted", "NotAllowed: IPLease shop was made for Service a"}, table: []Holder{heldPort(tcp(80), "a")}},
		"made for an address":             {leases: []Lease{madeFor(plain, "")}, services: []Service{serviceOf("a", 0, shop, tcp(80)), serviceOf("b", 0, shop, tcp(81))}, want: []string{"Granted", "Granted"}, table: []Holder{heldPort(tcp(80), "a"), heldPort(tcp(81), "b")}},
		"by another":                      {leases: []Lease{with(shownBy(plain, "Host"), heldPort(tcp(81), "b"))}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"LeaseUnfit: IPLease shop is shown by Host, and this Service would be by MetalLB"}, table: []Holder{heldPort(tcp(81), "b")}},
		"an address that an older has":    {leases: []Lease{plain, leaseOf("twin", "10.0.0.1")}, services: []Service{serviceOf("a", 0, []string{"twin"}, tcp(80))}, want: []string{"LeaseUnfit: IPLease twin has the address of IPLease shop"}},
		"why it has no address":           {leases: []Lease{refused(leaseOf("shop", ""), "PoolExhausted")}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"LeaseNotReady: IPLease shop has no address: PoolExhausted: no"}},
		"it waits":                        {services: []Service{waiting(serviceOf("a", 0, nil, tcp(80)))}, want: []string{"NoPool: none"}},
		"different selectors":             {leases: []Lease{open(plain), six}, services: []Service{dual(serviceOf("a", 0, both, tcp(80)))}, want: []string{"LeaseUnfit: the leases shop and shop-6 have different namespaceSelectors"}},
		"one of two, another is shown":    {leases: []Lease{plain, up(six)}, services: []Service{prefers(serviceOf("a", 0, shop, tcp(80)))}, want: []string{"LeaseUnfit: the Service prefers two families and has a lease of one, so MetalLB would give it the address of IPLease shop-6 too"}},
		"one of two, another is taken":    {leases: []Lease{plain, six}, services: []Service{ofSix(serviceOf("b", 0, []string{"shop-6"}, tcp(80))), prefers(serviceOf("a", 9, shop, tcp(80)))}, want: []string{"Granted", "LeaseUnfit"}},
		"one of two, and was first":       {leases: []Lease{plain, six}, services: []Service{prefers(serviceOf("a", 0, shop, tcp(80))), ofSix(serviceOf("b", 9, []string{"shop-6"}, tcp(80)))}, want: []string{"Granted", "LeaseUnfit: Service a prefers two families and has a lease of one, so MetalLB would give it the address of IPLease shop-6 too"}, table: []Holder{heldPort(tcp(80), "a")}},
		"both of two":                     {leases: []Lease{plain, up(six)}, services: []Service{dual(prefers(serviceOf("a", 0, both, tcp(80))))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"one of two, in different pools":  {leases: []Lease{plain, up(open(six))}, services: []Service{prefers(serviceOf("a", 0, shop, tcp(80)))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
		"a selector that is not valid":    {leases: []Lease{invalid(plain)}, services: []Service{serviceOf("a", 0, shop, tcp(80))}, want: []string{"LeaseUnfit: spec.namespaceSelector of IPLease shop is not valid: no"}},
		"it cannot be made":               {services: []Service{unmade(serviceOf("a", 0, shop, tcp(80)))}, want: []string{"LeaseNotReady: IPLease shop cannot be made: quota"}},
		"a port of two numbers":           {leases: []Lease{plain}, services: []Service{serviceOf("a", 0, shop, tcp(80), tcp(80))}, want: []string{"Granted"}, table: []Holder{heldPort(tcp(80), "a")}},
	} {
		t.Run(name, func(t *testing.T) {
			d := DecidePorts(c.leases, c.services, func(string, Holder) bool { return c.free })
			for i, s := range c.services {
				v := d.Reasons[s.UID]
				got := v.Reason + ": " + v.Message
				if c.want[i] == "" && v == (Reason{}) {
					continue
				}
				if len(got) < len(c.want[i]) || got[:len(c.want[i])] != c.want[i] {
					t.Errorf("the reason of %s is %q, want %q", s.Name, got, c.want[i])
				}
			}
			if diff := cmp.Diff(c.table, d.PortTables["shop"]); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestExcludedLeases checks that a lease of the other family stays out of the pool of a Service that would get it, too.
func TestExcludedLeases(t *testing.T) {
	s := serviceOf("a", 0, []string{"shop"}, tcp(80))
	s.PrefersDualStack = true
	leases := []Lease{leaseOf("shop", "10.0.0.1"), leaseOf("more", "10.0.0.2"), leaseOf("shop-6", "fd00::1")}
	never := func(string, Holder) bool { return false }
	if diff := cmp.Diff(map[string]bool{"shop-6": true}, DecidePorts(leases, []Service{s}, never).ExcludedLeases); diff != "" {
		t.Error(diff)
	}
	s.PrefersDualStack = false
	if excluded := DecidePorts(leases, []Service{s}, never).ExcludedLeases; len(excluded) > 0 {
		t.Errorf("%v", excluded)
	}
}

// TestMaxPorts checks the maximum number of ports of a lease.
func TestMaxPorts(t *testing.T) {
	l := leaseOf("shop", "10.0.0.1")
	for i := range v1alpha1.MaxLeasedPorts {
		l.PortTable = append(l.PortTable, heldPort(tcp(int32(1000+i)), "big"))
	}
	big := serviceOf("big", 0, []string{"shop"})
	for _, h := range l.PortTable {
		big.Ports = append(big.Ports, h.Port)
	}
	late := serviceOf("late", 1, []string{"shop"}, tcp(80))
	d := DecidePorts([]Lease{l}, []Service{big, late}, func(string, Holder) bool { return false })
	if len(d.PortTables["shop"]) != v1alpha1.MaxLeasedPorts || d.Reasons[late.UID].Reason != v1alpha1.PortTakenReason {
		t.Errorf("%d ports; %+v", len(d.PortTables["shop"]), d.Reasons[late.UID])
	}
}

// TestDecideAnything checks for any input: no port has two Services; a Service that has a port, and a right to it,
// keeps it; a Service has all of its ports or gets none; the decision does not depend on the order in which things are
// listed, and stays the same when it is made again.
func TestDecideAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ports := []Port{tcp(53), tcp(80), tcp(443), udp(53)}
		names := []string{"a", "b", "c", "d"}
		var leases []Lease
		for i, name := range []string{"shop", "mail"} {
			l := leaseOf(name, fmt.Sprintf("10.0.0.%d", 1+i))
			l.Deleting = rapid.IntRange(0, 9).Draw(rt, "deleting") == 0
			if rapid.Bool().Draw(rt, "declares") {
				l.DeclaredPorts = map[Port]ServiceRef{}
				for p, name := range rapid.MapOfN(rapid.SampledFrom(ports), rapid.SampledFrom(append(names, "", "")), 0, 4).Draw(rt, "declared") {
					l.DeclaredPorts[p] = ServiceRef{Name: name}
				}
			}
			for p, s := range rapid.MapOfN(rapid.SampledFrom(ports), rapid.SampledFrom(append(names, "gone")), 0, 4).Draw(rt, "table") {
				l.PortTable = append(l.PortTable, heldPort(p, s))
			}
			leases = append(leases, l)
		}
		var services []Service
		for _, name := range names {
			asks := rapid.SampledFrom([][]string{nil, {"shop"}, {"mail"}, {"shop"}, {"nowhere"}}).Draw(rt, "leases")
			s := serviceOf(name, rapid.IntRange(0, 3).Draw(rt, "age"), asks, rapid.SliceOfNDistinct(rapid.SampledFrom(ports), 1, 3, rapid.ID[Port]).Draw(rt, "ports")...)
			services = append(services, s)
		}
		never := func(string, Holder) bool { return false }
		d := DecidePorts(leases, services, never)
		for _, l := range leases {
			seen := map[Port]bool{}
			for _, h := range d.PortTables[l.Name] {
				if seen[h.Port] {
					rt.Fatalf("%s of %s is in the table twice", h.Port, l.Name)
				}
				seen[h.Port] = true
			}
			for _, h := range l.PortTable {
				if !slices.ContainsFunc(d.PortTables[l.Name], func(other Holder) bool { return other.Port == h.Port && other.Service == h.Service }) {
					rt.Fatalf("%s has lost %s of %s, and nothing is proven", h.Service, h.Port, l.Name)
				}
			}
		}
		for _, s := range services {
			held := 0
			for _, name := range s.LeaseNames {
				for _, p := range s.Ports {
					if slices.Contains(d.PortTables[name], Holder{p, s.ServiceRef, s.UID}) {
						held++
					}
				}
			}
			if granted := d.Reasons[s.UID].Reason == v1alpha1.GrantedReason; granted && (held == 0 || held != len(s.Ports)*len(s.LeaseNames)) {
				rt.Fatalf("%s is granted, and has %d of %d ports", s.Name, held, len(s.Ports))
			}
		}
		shuffled := slices.Clone(services)
		slices.Reverse(shuffled)
		if diff := cmp.Diff(d, DecidePorts([]Lease{leases[1], leases[0]}, shuffled, never)); diff != "" {
			rt.Fatalf("in another order: %s", diff)
		}
		for i := range leases {
			leases[i].PortTable = d.PortTables[leases[i].Name]
		}
		if again := DecidePorts(leases, services, never); cmp.Diff(d.PortTables, again.PortTables) != "" || cmp.Diff(d.Reasons, again.Reasons) != "" {
			rt.Fatalf("decided again: %s%s", cmp.Diff(d.PortTables, again.PortTables), cmp.Diff(d.Reasons, again.Reasons))
		}
	})
}
