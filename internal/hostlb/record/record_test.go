package record

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

var addresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// TestLockRoundTrip checks that a lock is parsed as it was written.
func TestLockRoundTrip(t *testing.T) {
	g := NewWithT(t)
	for _, want := range []Lock{
		{Address: netip.MustParseAddr("192.0.2.10")},
		{Address: netip.MustParseAddr("2001:db8::1"), Network: "dmz", ReleasedBy: "h1"},
		{Address: netip.MustParseAddr("192.0.2.11"), Report: &Report{
			LeaseUID: "u", Announced: true, Reason: "r", Message: "m", Ports: []PortReport{{Protocol: corev1.ProtocolTCP, Port: 80, Reason: "r", Message: "m"}},
		}},
	} {
		o := &coordinationv1.Lease{}
		want.WriteLease(o, "h2")
		got, holder, err := ParseLock(o)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(holder).To(Equal("h2"))
		g.Expect(cmp.Diff(want, got, addresses)).To(BeEmpty())
		g.Expect(got.Report.Equal(want.Report)).To(BeTrue())
		g.Expect(IsLockName(o.Name) && !IsHeartbeatName(o.Name)).To(BeTrue())
	}
	g.Expect(LockName(netip.MustParseAddr("192.0.2.10"), "")).To(Equal("ip-192-0-2-10"))
	g.Expect(LockName(netip.MustParseAddr("2001:db8::1"), "dmz")).To(Equal("ip-2001-0db8-0000-0000-0000-0000-0000-0001-dmz"))
	g.Expect((&Report{LeaseUID: "a"}).Equal(&Report{LeaseUID: "b"})).To(BeFalse())
	g.Expect((&Report{}).Equal(nil)).To(BeFalse())
}

func TestHeartbeatRoundTrip(t *testing.T) {
	g := NewWithT(t)
	want := hostlb.Host{
		Name: "h1", Networks: []hostlb.Network{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), MAC: "02:00:00:00:00:01", Interface: "eth0"}}, Network: "dmz", Node: "n1", Lifetime: 10 * time.Second, ForwardsTraffic: true,
		OwnAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}
	o := &coordinationv1.Lease{}
	at := metav1.NewMicroTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	WriteHeartbeat(o, &want, "boot", at, 10)
	got, machine, err := ParseHeartbeat(o)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(machine).To(Equal("boot"))
	g.Expect(cmp.Diff(want, got, addresses)).To(BeEmpty())
	g.Expect(o.Spec.RenewTime.Equal(&at)).To(BeTrue())
	o.Annotations = nil
	renewed, lifetime := ParseRenewal(o)
	g.Expect(renewed.Equal(at.Time) && lifetime == want.Lifetime).To(BeTrue(), "%s, %s", renewed, lifetime)
	renewed, lifetime = ParseRenewal(&coordinationv1.Lease{})
	g.Expect(renewed.IsZero() && lifetime == 0).To(BeTrue(), "a Lease without either: %s, %s", renewed, lifetime)
	g.Expect(*o.Spec.LeaseDurationSeconds).To(BeEquivalentTo(10))
	g.Expect(IsHeartbeatName(o.Name) && !IsLockName(o.Name)).To(BeTrue())
}

// TestUnreadableLeaseErrors checks that the error for an annotation that a person wrote names the Lease and the next
// step.
func TestUnreadableLeaseErrors(t *testing.T) {
	g := NewWithT(t)
	for _, text := range []string{"", "{", `{"address": 7}`, `{"networks": 7}`} {
		o := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "ip-192-0-2-10", Annotations: map[string]string{v1alpha1.HostLBAnnotation: text}}}
		_, _, lock := ParseLock(o)
		_, _, host := ParseHeartbeat(o)
		if lock != nil {
			g.Expect(lock).To(MatchError(ContainSubstring("Lease butler-host-lb/ip-192-0-2-10 cannot be read; a host that reaches the address rewrites it")))
		}
		if host != nil {
			g.Expect(host).To(MatchError(ContainSubstring("cannot be read; delete the Lease, its host makes it again")))
		}
		g.Expect(lock != nil || host != nil).To(BeTrue(), text)
	}
}

// TestRecreatedLeaseCanBeParsed checks that the Lease of a host that is deleted is created again by the host and
// can be parsed (W29).
func TestRecreatedLeaseCanBeParsed(t *testing.T) {
	g := NewWithT(t)
	host := hostlb.Host{Name: "h1", Lifetime: 10 * time.Second}
	made := func() *coordinationv1.Lease {
		o := &coordinationv1.Lease{}
		WriteHeartbeat(o, &host, "boot", metav1.NewMicroTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), 10)
		return o
	}
	wrong := made()
	wrong.Annotations[v1alpha1.HostLBAnnotation] = "{"
	_, _, err := ParseHeartbeat(wrong)
	g.Expect(err).To(MatchError(ContainSubstring("delete the Lease, its host makes it again")))
	_, _, err = ParseHeartbeat(made())
	g.Expect(err).NotTo(HaveOccurred())
}
