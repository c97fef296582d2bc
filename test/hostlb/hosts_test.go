//go:build linux

package hostlb

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

var (
	four = netip.MustParseAddr("192.0.2.100")
	six  = netip.MustParseAddr("2001:db8::100")
)

var _ = Describe("Hosts", func() {
	// H20: an address that must be shown is on one host, in each family.
	It("have an address on exactly one of them, as long as its lease exists", func(ctx SpecContext) {
		w := newWorld(ctx, 3)
		for _, a := range []netip.Addr{four, six} {
			most := w.atMostOne(a)
			o := w.lease(ctx, a)
			h := w.waitForOnlyHost(a)
			Eventually(func() string { return w.respondingHost(ctx, a) }).Should(Equal(h.name))
			Eventually(w.report(ctx, a)).Should(And(HaveField("Announced", true), HaveField("LeaseUID", o.UID), HaveField("Reason", "")))
			_, holder := w.lock(ctx, a)
			Expect(holder).To(Equal(h.name))
			Expect(h.RunInside(func() error { return isAlone(a) })).To(Succeed())

			By("deleting the lease")
			Expect(k8s.Delete(ctx, o)).To(Succeed())
			Eventually(func(g Gomega) {
				l, holder := w.lock(ctx, a)
				g.Expect([]string{holder, l.ReleasedBy}).To(HaveEach(BeEmpty()), "the wire was not asked, or answered")
			}).Should(Succeed())
			Expect(w.hostsWith(a)).To(BeEmpty())
			Expect(most()).To(Equal(1))
			removeLeaseFinalizers(ctx, o)
		}
	})

	It("write only heartbeats at rest", func(ctx SpecContext) {
		w := newWorld(ctx, 3)
		w.lease(ctx, four)
		w.waitForOnlyHost(four)
		Eventually(w.report(ctx, four)).Should(HaveField("Announced", true))
		was := w.writes(ctx)
		Consistently(func() map[string]string { return w.writes(ctx) }).WithTimeout(observePeriod).WithPolling(time.Second).Should(Equal(was))
	})

	It("take over the address of a host that is killed", func(ctx SpecContext) {
		w := newWorld(ctx, 3)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(h.name))
		killed := time.Now()
		Expect(h.Kill()).To(Succeed())
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(And(Not(BeEmpty()), Not(Equal(h.name))))
		AddReportEntry("kill -9: seconds until another host answers, D="+lifetime.String(), time.Since(killed).Seconds())
		Expect(most()).To(Equal(1))

		By("starting it again: the address stays on the other host")
		other := w.waitForOnlyHost(four)
		h.start()
		Consistently(func() bool { return other.has(four) && !h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
	})

	It("take over the address of a host that stops", func(ctx SpecContext) {
		w := newWorld(ctx, 3)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(h.name))
		ended := time.Now()
		h.signal(syscall.SIGTERM)
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(And(Not(BeEmpty()), Not(Equal(h.name))))
		AddReportEntry("SIGTERM: seconds until another host answers", time.Since(ended).Seconds())
		Expect(h.Stop()).To(Succeed())
		Expect(most()).To(Equal(1))
		Expect(h.has(four)).To(BeFalse())
	})

	It("take over the address of a host that is frozen, which does not have the address when it resumes", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		h.signal(syscall.SIGSTOP)
		DeferCleanup(h.signal, syscall.SIGCONT)
		other := w.others(h)[0]
		Eventually(func() bool { return other.has(four) }).Should(BeTrue())
		h.signal(syscall.SIGCONT)
		Consistently(func() bool { return other.has(four) && !h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		Expect(most()).To(Equal(1))
	})

	// T4: a host that loses the API server does not lose the address.
	It("keep their addresses while the API server is unreachable", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		for _, o := range w.hosts {
			o.Relay.Disconnect()
		}
		Consistently(func() bool { return h.has(four) }).WithTimeout(4 * lifetime).Should(BeTrue())
		for _, o := range w.hosts {
			Expect(o.Relay.Reconnect(context.WithoutCancel(ctx))).To(Succeed())
		}
		Consistently(func() bool { return h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
	})

	// T2: the hosts that would take the address over see that it is answered, and leave it where it is.
	It("leave the address on a host that only loses the API server, and it keeps the address when it reconnects", func(ctx SpecContext) {
		w := newWorld(ctx, 3)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		stays := func() string {
			if !h.has(four) {
				return ""
			}
			_, holder := w.lock(ctx, four)
			return holder
		}
		h.Relay.Disconnect()
		Consistently(stays).WithTimeout(2 * observePeriod).Should(Equal(h.name))
		Expect(h.Relay.Reconnect(context.WithoutCancel(ctx))).To(Succeed())
		Consistently(stays).WithTimeout(observePeriod).Should(Equal(h.name))
		Expect(most()).To(Equal(1))
		Eventually(w.report(ctx, four)).Should(And(HaveField("Reason", ""), HaveField("Announced", true)))
	})

	It("take over the address of a host that is killed while it cannot reach the API server", func(ctx SpecContext) {
		w := newWorld(ctx, 3)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		h.Relay.Disconnect()
		Consistently(func() bool { return h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		killed := time.Now()
		Expect(h.Kill()).To(Succeed())
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(And(Not(BeEmpty()), Not(Equal(h.name))))
		AddReportEntry("kill -9 of one that is cut off: seconds until another host answers, D="+lifetime.String(), time.Since(killed).Seconds())
		Expect(most()).To(Equal(1))
	})

	It("leave the address on its host when their network is split and the API server is reachable", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		Expect(h.SetIsolated(true)).To(Succeed())
		Consistently(func() bool { return h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		Expect(most()).To(Equal(1))
	})

	It("hand the address over when the cable of its host is pulled", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		most := w.atMostOne(four)
		Expect(h.SetUnplugged(true)).To(Succeed())
		other := w.others(h)[0]
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(other.name))
		Expect(h.SetUnplugged(false)).To(Succeed())
		Consistently(func() bool { return other.has(four) && !h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		Expect(most()).To(Equal(1))
	})

	It("move an address to the interface that has a cable, of two in one network", func(ctx SpecContext) {
		w := newWorld(ctx, 0)
		h := w.join(ctx, "h1", 1)
		Expect(h.RunInside(func() error { // otherwise the kernel answers through the interface without a cable
			return os.WriteFile("/proc/sys/net/ipv4/conf/all/ignore_routes_with_linkdown", []byte("1"), 0o600)
		})).To(Succeed())
		_, err := h.AddInterface("eth1", netip.MustParsePrefix("192.0.2.11/24"))
		Expect(err).NotTo(HaveOccurred())
		h.serve(ctx)
		h.start()
		w.lease(ctx, four)
		w.waitForOnlyHost(four)
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(h.name))
		Expect(h.SetUnplugged(true)).To(Succeed())
		Eventually(func() []string { return h.interfacesWith(four) }).Should(Equal([]string{"eth1"}))
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(h.name))
		Expect(h.SetUnplugged(false)).To(Succeed())
		Consistently(func() []string { return h.interfacesWith(four) }).WithTimeout(lifetime).Should(Equal([]string{"eth1"}), "it does not go back")
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(h.name))
	})

	It("have addresses on a bridge, and hand them over when the cable of its port is pulled", func(ctx SpecContext) { // H29
		w := newWorld(ctx, 0)
		begin := func(number int) *host {
			h := w.join(ctx, fmt.Sprintf("h%d", number), number)
			Expect(h.BridgeInterface("br0")).To(Succeed())
			h.serve(ctx)
			h.start()
			h.awaitHeartbeat(ctx)
			return h
		}
		h := begin(1)
		all := []netip.Addr{four, six}
		for _, a := range all {
			w.lease(ctx, a)
			w.waitForOnlyHost(a)
			Eventually(func() string { return w.respondingHost(ctx, a) }).Should(Equal(h.name))
		}
		other := begin(2)
		most := w.atMostOne(four)
		Expect(h.SetUnplugged(true)).To(Succeed())
		for _, a := range all {
			Eventually(func() string { return w.respondingHost(ctx, a) }).Should(Equal(other.name))
		}
		Expect(h.SetUnplugged(false)).To(Succeed())
		Consistently(func() bool { return other.has(four) && !h.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		Expect(most()).To(Equal(1))
	})

	// The one case of two hosts with one address: docs/design.md.
	It("have an address twice only until they see each other, after one was cut off from the network and from the API server", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		other := w.others(h)[0]
		Expect(h.SetIsolated(true)).To(Succeed())
		h.Relay.Disconnect()
		Eventually(func() bool { return other.has(four) }).Should(BeTrue())
		Expect(h.has(four)).To(BeTrue(), "it cannot learn of that")
		Expect(h.SetIsolated(false)).To(Succeed())
		Eventually(func() bool { return h.has(four) }).Should(BeFalse())
		Expect(other.has(four)).To(BeTrue())
		Expect(h.Relay.Reconnect(context.WithoutCancel(ctx))).To(Succeed())
		Consistently(func() bool { return other.has(four) && !h.has(four) }).WithTimeout(lifetime).Should(BeTrue())
	})

	// H12: a machine that is none of the hosts answers.
	It("do not add an address that another machine has", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		for _, a := range []netip.Addr{four, six} {
			foreign, err := w.JoinHost("foreign"+map[bool]string{true: "6", false: "4"}[a.Is6()], netip.PrefixFrom(a, map[bool]int{true: 64, false: 24}[a.Is6()]))
			Expect(err).NotTo(HaveOccurred())
			mac := ""
			Expect(foreign.RunInside(func() error {
				l, err := netlink.LinkByName("eth0")
				if err == nil {
					mac = l.Attrs().HardwareAddr.String()
				}
				return err
			})).To(Succeed())
			w.lease(ctx, a)
			Eventually(w.report(ctx, a)).Should(And(HaveField("Reason", v1alpha1.AddressInUseReason), HaveField("Message", ContainSubstring(mac))))
			Expect(w.hostsWith(a)).To(BeEmpty())
			Expect(foreign.SetUnplugged(true)).To(Succeed())
			w.waitForOnlyHost(a)
			Eventually(w.report(ctx, a)).Should(And(HaveField("Reason", ""), HaveField("Announced", true)))
		}
	})

	It("add an address that one of them had configured itself when it is removed there", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		for i, a := range []netip.Addr{four, six} {
			h, own := w.hosts[i], &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen()/2, a.BitLen())}, Flags: unix.IFA_F_NODAD}
			change := func(change func(netlink.Link, *netlink.Addr) error) error {
				return h.RunInside(func() error {
					l, err := netlink.LinkByName("eth0")
					if err != nil {
						return err
					}
					return change(l, own)
				})
			}
			Expect(change(netlink.AddrAdd)).To(Succeed())
			w.lease(ctx, a)
			Eventually(w.report(ctx, a)).Should(And(HaveField("Reason", v1alpha1.AddressInUseReason),
				HaveField("Message", ContainSubstring("host %s has %s itself; take the address off that host", h.name, a))))
			Expect(w.hostsWith(a)).To(BeEmpty())
			Expect(change(netlink.AddrDel)).To(Succeed())
			w.waitForOnlyHost(a)
			Eventually(w.report(ctx, a)).Should(And(HaveField("Reason", ""), HaveField("Announced", true)))
		}
	})

	It("add an address again that a user has removed", func(ctx SpecContext) {
		w := newWorld(ctx, 1)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		Expect(h.RunInside(func() error {
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(four.String() + "/32")
			if err != nil {
				return err
			}
			return netlink.AddrDel(l, a)
		})).To(Succeed())
		w.waitForOnlyHost(four)
		Eventually(func() string { return w.respondingHost(ctx, four) }).Should(Equal(h.name))
	})

	// T6: a restart within D is not seen.
	It("keep the address over a restart", func(ctx SpecContext) {
		// The lifetime is twice that of the other specs: a busy machine takes seconds to start the program.
		w := newWorld(ctx, 2, "--release-on-exit=false", "--lease-duration="+observePeriod.String())
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		Expect(h.Stop()).To(Succeed())
		h.start()
		Consistently(func() bool { return h.has(four) }).WithTimeout(2 * observePeriod).Should(BeTrue())
		_, holder := w.lock(ctx, four)
		Expect(holder).To(Equal(h.name))
	})

	It("remove an address from before a restart whose lease is deleted", func(ctx SpecContext) {
		w := newWorld(ctx, 1, "--release-on-exit=false")
		o := w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		Expect(h.Stop()).To(Succeed())
		Expect(k8s.Delete(ctx, o)).To(Succeed())
		h.start()
		Eventually(func(g Gomega) {
			l, holder := w.lock(ctx, four)
			g.Expect([]string{holder, l.ReleasedBy}).To(HaveEach(BeEmpty()), "the wire was not asked, or answered")
		}).Should(Succeed())
		Expect(h.has(four)).To(BeFalse())
	})

	// A pool has the addresses of the hosts: the host does not release its own address, so the other host does not wait
	// for that.
	It("report that an address is one that a host has itself", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		for i, h := range w.hosts {
			own := netip.AddrFrom4([4]byte{192, 0, 2, byte(1 + i)})
			w.lease(ctx, own)
			Eventually(w.report(ctx, own)).Should(And(
				HaveField("Reason", v1alpha1.AddressInUseReason), HaveField("Message", ContainSubstring("host "+h.name+" has "+own.String()+" itself")), HaveField("Announced", false),
			))
		}
	})

	// P6: an empty lock is the proof. While no host can probe the address, there is no proof.
	It("prove that no machine has the address of a dead host, and prove nothing while no host runs", func(ctx SpecContext) {
		w := newWorld(ctx, 2)
		o := w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		other := w.others(h)[0]
		Expect(other.Kill()).To(Succeed())
		Expect(h.Kill()).To(Succeed())
		Expect(k8s.Delete(ctx, o)).To(Succeed())
		Consistently(func() string { _, holder := w.lock(ctx, four); return holder }).WithTimeout(observePeriod).Should(Equal(h.name))
		other.start()
		Eventually(func(g Gomega) {
			l, holder := w.lock(ctx, four)
			g.Expect([]string{holder, l.ReleasedBy}).To(HaveEach(BeEmpty()), "the wire was not asked, or answered")
		}).Should(Succeed())
	})

	// T1: a second machine of the same name waits.
	It("wait while another machine uses their name", func(ctx SpecContext) {
		w := newWorld(ctx, 1)
		w.lease(ctx, four)
		h := w.waitForOnlyHost(four)
		twin := w.join(ctx, "twin", 9)
		twin.name = h.name
		twin.start()
		Eventually(twin.ReadLog).Should(ContainSubstring("is in use by another machine"))
		Consistently(func() bool { return h.has(four) && !twin.has(four) }).WithTimeout(observePeriod).Should(BeTrue())
		Expect(h.Kill()).To(Succeed())
		Eventually(func() bool { return twin.has(four) }).Should(BeTrue())
	})

	It("run once in a network namespace", func(ctx SpecContext) {
		w := newWorld(ctx, 1)
		second := exec.CommandContext(ctx, binaries.Host, "--host-name=second")
		out := &writer{}
		second.Stdout, second.Stderr = out, out
		Expect(w.hosts[0].StartProcess(second)).To(Succeed())
		Expect(second.Wait()).To(HaveOccurred())
		Expect(out.String()).To(ContainSubstring("another butler-host-lb runs on this host"))
	})

	// H22: the whole state is in objects.
	It("have no address of a lease without ports", func(ctx SpecContext) {
		w := newWorld(ctx, 1)
		o := w.lease(ctx, four)
		w.waitForOnlyHost(four)
		Expect(k8s.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
		ports := o.Status.Ports
		o.Status.Ports = nil
		Expect(k8s.Status().Update(ctx, o)).To(Succeed())
		Eventually(func() []*host { return w.hostsWith(four) }).Should(BeEmpty())
		o.Status.Ports = ports
		Expect(k8s.Status().Update(ctx, o)).To(Succeed())
		w.waitForOnlyHost(four)
	})
})
