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

// P7: what a person made, or a Service asks for by its address, stays; the others have another address, so often.
func TestNextAddress(t *testing.T) { // H15
	tried := func(texts ...string) func(*Lease, *Service) {
		return func(_ *Lease, s *Service) { s.Tried = addresses(texts...) }
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
		"the last attempt":                    {change: []func(*Lease, *Service){tried("10.0.0.8", "10.0.0.9", "10.0.0.1")}, want: "somebody else answers for each of 10.0.0.8, 10.0.0.9, 10.0.0.1; take 10.0.0.1 off"},
		"more than there are attempts by now": {change: []func(*Lease, *Service){tried("10.0.0.7", "10.0.0.8", "10.0.0.9", "10.0.0.1")}, want: "exhausted all IP allocation attempts"},
		"attempts of the other family":        {change: []func(*Lease, *Service){tried("fd00::1", "fd00::2", "10.0.0.1")}, want: "replace"},
		"published":                           {change: []func(*Lease, *Service){tried("10.0.0.1"), func(_ *Lease, s *Service) { s.Published = addresses("10.0.0.1") }}},
		"not in use":                          {change: []func(*Lease, *Service){tried("10.0.0.1"), func(l *Lease, _ *Service) { l.UsedByOthers = false }}},
		"a person's":                          {change: []func(*Lease, *Service){func(l *Lease, _ *Service) { l.Made, l.For = false, "" }}},
		"for an address":                      {change: []func(*Lease, *Service){func(l *Lease, s *Service) { l.For, s.Address = "", l.Address }}},
		"for another Service":                 {change: []func(*Lease, *Service){func(l *Lease, _ *Service) { l.For = "zoo" }}},
		"of its name in another namespace":    {change: []func(*Lease, *Service){func(_ *Lease, s *Service) { s.Namespace = "other" }}},
		"by its annotation":                   {change: []func(*Lease, *Service){func(_ *Lease, s *Service) { s.Class = "" }}},
		"it asks no more":                     {change: []func(*Lease, *Service){func(_ *Lease, s *Service) { s.Leases = nil }}},
		"it is being deleted":                 {change: []func(*Lease, *Service){tried("10.0.0.1"), func(l *Lease, _ *Service) { l.Deleting = true }}},
		"its Service is being deleted":        {change: []func(*Lease, *Service){tried("10.0.0.1"), func(_ *Lease, s *Service) { s.Deleting = true }}},
		"nobody serves it":                    {change: []func(*Lease, *Service){tried("10.0.0.1"), func(_ *Lease, s *Service) { s.Off = "no flag" }}},
	} {
		l, s := leaseOf("web-ipv4", "10.0.0.1"), serviceOf("web", 0, []string{"web-ipv4"}, tcp(80))
		l.Made, l.For, l.UsedByOthers, s.Class = true, "web", true, class
		for _, f := range c.change {
			f(&l, &s)
		}
		next := NextAddress(&l, &s, 3)
		got := next.Told.Message
		if next.Note {
			got += "note"
		}
		if next.Replace {
			got += "replace"
		}
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
}

// A Service without any more attempts keeps its ports, and is told why nobody shows them. What else it is told stays.
func TestExhaust(t *testing.T) { // H14
	for name, c := range map[string]struct{ told, want string }{
		"granted": {v1alpha1.GrantedReason, v1alpha1.AddressAttemptsExhaustedReason},
		"refused": {v1alpha1.PortTakenReason, v1alpha1.PortTakenReason},
	} {
		l, s := leaseOf("web-ipv4", "10.0.0.1", held(tcp(80), "web")), serviceOf("web", 0, []string{"web-ipv4"}, tcp(80))
		l.Made, l.For, l.UsedByOthers, s.Class, s.Tried = true, "web", true, class, addresses("10.0.0.1")
		d := Decide([]Lease{l}, []Service{s}, func(string, Holder) bool { return false })
		d.Verdicts[s.UID] = Verdict{c.told, ""}
		d.Exhaust([]Lease{l}, []Service{s}, 1)
		if got := d.Verdicts[s.UID].Reason; got != c.want {
			t.Errorf("%s: it is told %s", name, got)
		}
		if len(d.Tables["web-ipv4"]) != 1 {
			t.Errorf("%s: it has %v", name, d.Tables)
		}
	}
}

// What was tried is read as it was written, and what a person made of it as far as it can be.
func TestTries(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "10.0.0.2",
		"10.0.0.1":                "10.0.0.1,10.0.0.2",
		"10.0.0.1,fd00::1":        "10.0.0.1,fd00::1,10.0.0.2",
		"10.0.0.1 , x, 10.0.0.1,": "10.0.0.1,10.0.0.2",
	} {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.TriedAddressesAnnotation: text}}}
		Tries(s, netip.MustParseAddr("10.0.0.2"))
		if got := s.Annotations[v1alpha1.TriedAddressesAnnotation]; got != want {
			t.Errorf("%q becomes %q, not %q", text, got, want)
		}
		if got := len(ServiceOf(s, "").Tried); got != strings.Count(want, ",")+1 {
			t.Errorf("%q is read as %d addresses", want, got)
		}
	}
}

func TestUsedByOthers(t *testing.T) {
	for reason, want := range map[string]bool{v1alpha1.AddressInUseReason: true, v1alpha1.ContestedReason: false, v1alpha1.PortInUseOnHostReason: false, "": false} {
		l := &v1alpha1.IPLease{}
		if reason != "" {
			meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{Type: v1alpha1.AnnouncedCondition, Status: metav1.ConditionFalse, Reason: reason})
		}
		if is := LeaseOf(l); is.UsedByOthers != want {
			t.Errorf("%q: %v", reason, is.UsedByOthers)
		}
	}
}
