package elastic

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
)

// epoch is the time at which every test begins.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

type change func(*Service)

// svc returns a Service with one IPv4 address family that listens on TCP/80.
func svc(name string, changes ...change) Service {
	s := Service{Namespace: "team", Name: name, Families: []Family{IPv4}, Ports: []Port{{"TCP", 80}}}
	for _, c := range changes {
		c(&s)
	}
	return s
}

func in(namespace string) change { return func(s *Service) { s.Namespace = namespace } }
func class(name string) change   { return func(s *Service) { s.LoadBalancerClass = name } }
func label(value string) change {
	return func(s *Service) { s.Labels = map[string]string{"app": value} }
}
func withRequestedIPs(text string) change { return func(s *Service) { s.RequestedIPs = ips(text) } }
func named(pool string) change            { return func(s *Service) { s.RequestedPool = pool } }
func withAddresses(text string) change    { return func(s *Service) { s.Addresses = ips(text) } }
func withError(text string) change        { return func(s *Service) { s.RequestProblem = text } }
func backend(key string) change           { return func(s *Service) { s.BackendKey = key } }
func of(families ...Family) change        { return func(s *Service) { s.Families = families } }

func dual(stack IPFamilyPolicy) change {
	return func(s *Service) { s.Families, s.FamilyPolicy = []Family{IPv4, IPv6}, stack }
}

// shares sets a sharing key and TCP ports.
func shares(key string, ports ...int32) change {
	return func(s *Service) {
		s.SharingKey, s.Ports = key, nil
		for _, p := range ports {
			s.Ports = append(s.Ports, Port{"TCP", p})
		}
	}
}

func ips(text string) (out []netip.Addr) {
	for a := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func spans(texts []string) (out []netipx.IPRange) {
	for _, t := range texts {
		if !strings.Contains(t, "-") {
			t += "-" + t
		}
		out = append(out, netipx.MustParseIPRange(t))
	}
	return out
}

// pool returns a pool that serves any Service. ours returns the one that receives growth.
func pool(name string, ranges ...string) Pool {
	return Pool{Name: name, AutoAssign: true, Ranges: spans(ranges)}
}

func ours(ranges ...string) Pool {
	p := pool("default-pool", ranges...)
	p.ReceivesGrowth = true
	return p
}

func (p Pool) with(change func(*Pool)) Pool {
	change(&p)
	return p
}

func (p Pool) closed() Pool { return p.with(func(p *Pool) { p.AutoAssign = false }) }

func (p Pool) careful() Pool { return p.with(func(p *Pool) { p.AvoidBuggyIPs = true }) }

func (p Pool) onlyFor(r Restriction) Pool { return p.with(func(p *Pool) { p.Restriction = &r }) }

func app(value string) func(map[string]string) bool {
	return func(labels map[string]string) bool { return labels["app"] == value }
}

var states = map[ServiceState]string{ServicePlaced: "Placed", ServicePlaceable: "Fits", ServiceNeedsGrowth: "Lacks", ServiceStuck: "Stuck", ServiceOtherClass: "Foreign"}

// assessment is a row of a table, with services from the oldest to the youngest.
type assessment struct {
	reason      string
	pools       []Pool
	services    []Service
	class       string
	grows       string // the families that the cluster can grow by; empty means 46
	want        string // sorted by name
	shortfall   [2]int64
	used        string // "-" for none; empty: not checked
	wantMessage string // part of the message of those that are stuck, or have no address
}

func (c *assessment) inventory() Inventory {
	for i := range c.services {
		c.services[i].Created = epoch.Add(time.Duration(i) * time.Second)
	}
	grows := [2]bool{c.grows == "" || strings.Contains(c.grows, "4"), c.grows == "" || strings.Contains(c.grows, "6")}
	return Inventory{Services: c.services, Pools: c.pools, LoadBalancerClass: c.class, GrowableFamilies: grows}
}

func (c *assessment) check(t *testing.T) {
	t.Helper()
	got := AssessServices(c.inventory())
	if diff := cmp.Diff(c.want, formatAssessment(got)); diff != "" {
		t.Errorf("%s:\n%s", c.reason, diff)
	}
	if got.Shortfall != c.shortfall {
		t.Errorf("%s: lacking %v, want %v", c.reason, got.Shortfall, c.shortfall)
	}
	if used := strings.Join(sortedUse(got), " "); c.used != "" && used != strings.Trim(c.used, "-") {
		t.Errorf("%s: used %q, want %q", c.reason, used, c.used)
	}
	messages := ""
	for _, v := range got.ServiceAssessments {
		if (v.Message == "") != (v.State == ServicePlaced || v.State == ServicePlaceable) {
			t.Errorf("%s is %s, because %q", v.Service.Name, states[v.State], v.Message)
		}
		messages += v.Message + "\n"
	}
	if !strings.Contains(messages, c.wantMessage) {
		t.Errorf("%s: it says\n%swant %q", c.reason, messages, c.wantMessage)
	}
}

// formatAssessment formats the state of each Service, sorted by name.
func formatAssessment(a Assessment) string {
	var out []string
	for _, v := range a.ServiceAssessments {
		out = append(out, fmt.Sprintf("%s=%s", v.Service.Name, states[v.State]))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func sortedUse(a Assessment) (out []string) {
	var addrs []netip.Addr
	for u := range a.UsedAddresses {
		addrs = append(addrs, u)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, u := range addrs {
		out = append(out, u.String())
	}
	return out
}

func checkAll(t *testing.T, tests map[string]assessment) {
	t.Helper()
	for name, c := range tests {
		t.Run(name, func(t *testing.T) { c.check(t) })
	}
}
