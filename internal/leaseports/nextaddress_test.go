package leaseports

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// TestNextAddress checks P7: a lease that a user created, or whose address a Service requests, stays; the others get
// another address, a limited number of times.
func TestNextAddress(t *testing.T) { // H15
	tried := func(texts ...string) func(*Lease, *Service) {
		return func(_ *Lease, s *Service) { s.TriedAddresses = addresses(texts...) }
	}
	for name, c := range map[string]struct {
		change []func(*Lease, *Service)
		want   string
	}{
		"in use":                              {want: "note"},
		"noted":                               {change: []func(*Lease, *Service){tried("10.0.0.1")}, want: "replace"},
		"another was noted":                   {change: []func(*Lease, *Service){tried("10.0.0.9")}, want: "note"},
		"noted, of two":                       {change: []func(*Lease, *Service){tried("10.0.0.9", "10.0.0.1")}, want: "replace"},
		"the last attempt, not noted":         {change: []func(*Lease, *Service){tried("10.0.0.8", "10.0.0.9")}, want: "note"},
		"the last attempt":                    {change: []func(*Lease, *Service){tried("10.0.0.8", "10.0.0.9", "10.0.0.1")}, want: "another machine answers for each of 10.0.0.8, 10.0.0.9, 10.0.0.1; remove 10.0.0.1 from"},
		"more than there are attempts by now": {change: []func(*Lease, *Service){tried("10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.1")}, want: "exhausted all IP allocation attempts"},
		"attempts of the other family":        {change: []func(*Lease, *Service){tried("fd00::1", "fd00::2", "10.0.0.1")}, want: "replace"},
		"published":                           {change: []func(*Lease, *Service){tried("10.0.0.1"), func(_ *Lease, s *Service) { s.PublishedAddresses = addresses("10.0.0.1") }}},
		"not in use":                          {change: []func(*Lease, *Service){tried("10.0.0.1"), func(l *Lease, _ *Service) { l.AddressInUse = false }}},
		"a person's":                          {change: []func(*Lease, *Service){func(l *Lease, _ *Service) { l.MadeForServices, l.OnlyService = false, "" }}},
		"for an address":                      {change: []func(*Lease, *Service){func(l *Lease, s *Service) { l.OnlyService, s.RequestedAddress = "", l.Address }}},
		"for another Service":                 {change: []func(*Lease, *Service){func(l *Lease, _ *Service) { l.OnlyService = "zoo" }}},
		"of its name in another namespace":    {change: []func(*Lease, *Service){func(_ *Lease, s *Service) { s.Namespace = "other" }}},
		"by its annotation":                   {change: []func(*Lease, *Service){func(_ *Lease, s *Service) { s.LoadBalancerClass = "" }}},
		"it asks no more":                     {change: []func(*Lease, *Service){func(_ *Lease, s *Service) { s.LeaseNames = nil }}},
		"it is being deleted":                 {change: []func(*Lease, *Service){tried("10.0.0.1"), func(l *Lease, _ *Service) { l.Deleting = true }}},
		"its Service is being deleted":        {change: []func(*Lease, *Service){tried("10.0.0.1"), func(_ *Lease, s *Service) { s.Deleting = true }}},
		"no controller serves it":             {change: []func(*Lease, *Service){tried("10.0.0.1"), func(_ *Lease, s *Service) { s.NotServedMessage = "no flag" }}},
	} {
		l, s := leaseOf("web-ipv4", "10.0.0.1"), serviceOf("web", 0, []string{"web-ipv4"}, tcp(80))
		l.MadeForServices, l.OnlyService, l.AddressInUse, s.LoadBalancerClass = true, "web", true, class
		for _, f := range c.change {
			f(&l, &s)
		}
		next := DecideNextAddress(&l, &s, 3)
		got := next.ExhaustedReason.Message
		if next.RecordTried {
			got += "note"
		}
		if next.ReplaceLease {
			got += "replace"
		}
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// TestSetExhaustedReasons checks that a Service without any attempts left keeps its ports, and that its condition shows
// why they are not shown. Other conditions stay.
func TestSetExhaustedReasons(t *testing.T) { // H14
	for name, c := range map[string]struct{ reason, want string }{
		"granted": {v1alpha1.GrantedReason, v1alpha1.AddressAttemptsExhaustedReason},
		"refused": {v1alpha1.PortTakenReason, v1alpha1.PortTakenReason},
	} {
		l, s := leaseOf("web-ipv4", "10.0.0.1", heldPort(tcp(80), "web")), serviceOf("web", 0, []string{"web-ipv4"}, tcp(80))
		l.MadeForServices, l.OnlyService, l.AddressInUse, s.LoadBalancerClass, s.TriedAddresses = true, "web", true, class, addresses("10.0.0.1")
		d := DecidePorts([]Lease{l}, []Service{s}, func(string, Holder) bool { return false })
		d.Reasons[s.UID] = Reason{c.reason, ""}
		d.SetExhaustedReasons([]Lease{l}, []Service{s}, 1)
		if got := d.Reasons[s.UID].Reason; got != c.want {
			t.Errorf("%s: the reason is %s", name, got)
		}
		if len(d.PortTables["web-ipv4"]) != 1 {
			t.Errorf("%s: it has %v", name, d.PortTables)
		}
	}
}

// TestTriedAddresses checks that the tried addresses are parsed as they were written, and after an edit by a user as
// far as possible.
func TestTriedAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "10.0.0.2",
		"10.0.0.1":                "10.0.0.1,10.0.0.2",
		"10.0.0.1,fd00::1":        "10.0.0.1,fd00::1,10.0.0.2",
		"10.0.0.1 , x, 10.0.0.1,": "10.0.0.1,10.0.0.2",
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.TriedAddressesAnnotation: text}}}
		AddTriedAddress(s, netip.MustParseAddr("10.0.0.2"))
		if got := s.Annotations[v1alpha1.TriedAddressesAnnotation]; got != want {
			t.Errorf("%q becomes %q, not %q", text, got, want)
		}
		if got := len(NewService(s, "").TriedAddresses); got != strings.Count(want, ",")+1 {
			t.Errorf("%q is read as %d addresses", want, got)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	for reason, want := range map[string]bool{v1alpha1.AddressInUseReason: true, v1alpha1.ContestedReason: false, v1alpha1.PortInUseOnHostReason: false, "": false} {
		l := &v1alpha1.IPLease{}
		if reason != "" {
			meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: reason})
		}
		if lease := NewLease(l); lease.AddressInUse != want {
			t.Errorf("%q: %v", reason, lease.AddressInUse)
		}
	}
}
