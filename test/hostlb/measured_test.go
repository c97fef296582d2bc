//go:build linux

package hostlb

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/netif"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
)

// addressesByHost returns the addresses of leases that each host has.
func (w *world) addressesByHost() map[*host]map[netip.Addr]bool {
	GinkgoHelper()
	out := map[*host]map[netip.Addr]bool{}
	for _, h := range w.hosts {
		out[h] = map[netip.Addr]bool{}
		Expect(h.RunInside(func() error {
			links, err := netif.ListLinks()
			for _, l := range links {
				for _, a := range l.Managed {
					out[h][a] = true
				}
			}
			return err
		})).To(Succeed())
	}
	return out
}

// countShown returns how many addresses are on any host.
func (w *world) countShown() int {
	n := map[netip.Addr]bool{}
	for _, shown := range w.addressesByHost() {
		for a := range shown {
			n[a] = true
		}
	}
	return len(n)
}

// writesIn returns how many writes of Leases there are in a second, measured for a while.
func writesIn(ctx context.Context, d time.Duration) float64 {
	GinkgoHelper()
	watcher, err := k8s.Watch(ctx, &coordinationv1.LeaseList{}, client.InNamespace(record.Namespace))
	Expect(err).NotTo(HaveOccurred())
	defer watcher.Stop()
	n := 0
	begins, over := time.After(time.Second), time.After(time.Second+d) // the existing objects come first
	counts := false
	for {
		select {
		case <-watcher.ResultChan():
			if counts {
				n++
			}
		case <-begins:
			counts = true
		case <-over:
			return float64(n) / d.Seconds()
		}
	}
}

// H17, and the numbers for hosts in docs/performance.md: make bench-hosts.
var _ = Describe("A measurement", func() {
	It("covers many addresses on three hosts, at rest, when a host stops, and without the API server", func(ctx SpecContext) {
		if os.Getenv("MEASURE") == "" {
			Skip("SKIPPED: make bench-hosts measures")
		}
		n, err := strconv.Atoi(cmp.Or(os.Getenv("ADDRESSES"), "1000"))
		Expect(err).NotTo(HaveOccurred())
		outage, err := time.ParseDuration(cmp.Or(os.Getenv("OUTAGE"), "1m"))
		Expect(err).NotTo(HaveOccurred())
		w := newWorld(ctx, 3, "--lease-duration=10s")
		began := time.Now()
		for i := range n {
			w.lease(ctx, netip.AddrFrom4([4]byte{10, 9, byte(i / 250), byte(1 + i%250)}))
		}
		Eventually(w.countShown).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Equal(n))
		AddReportEntry(fmt.Sprintf("%d addresses shown after, in seconds, of which they were made in some", n), time.Since(began).Seconds())
		var of []int
		for _, shown := range w.addressesByHost() {
			of = append(of, len(shown))
		}
		slices.Sort(of)
		AddReportEntry("addresses of each host", of)
		Eventually(func() float64 { return writesIn(ctx, 5*time.Second) }).WithTimeout(2 * time.Minute).Should(BeNumerically("<", 2))
		AddReportEntry("writes a second at rest, over 30 s", writesIn(ctx, 30*time.Second))

		By("disconnecting the API server for " + outage.String())
		for _, h := range w.hosts {
			h.Relay.Disconnect()
		}
		least := n
		for until := time.Now().Add(outage); time.Now().Before(until); {
			least = min(least, w.countShown())
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
		AddReportEntry("least addresses shown while the API server was away for "+outage.String(), least)
		for _, h := range w.hosts {
			Expect(h.Relay.Reconnect(context.WithoutCancel(ctx))).To(Succeed())
		}
		Eventually(func() float64 { return writesIn(ctx, 5*time.Second) }).WithTimeout(2 * time.Minute).Should(BeNumerically("<", 2))
		Expect(w.countShown()).To(Equal(n))

		for _, failure := range []struct {
			text string
			do   func(*host)
		}{
			{"kill -9", func(h *host) { Expect(h.Kill()).To(Succeed()) }},
			{"SIGTERM", func(h *host) { h.signal(syscall.SIGTERM) }},
		} {
			h := w.hosts[0]
			moved := w.addressesByHost()[h]
			w.hosts = w.hosts[1:]
			most := w.atMostOne(first(moved))
			ended := time.Now()
			failure.do(h)
			var times []float64
			Eventually(func() int {
				for o, shown := range w.addressesByHost() {
					if o == h {
						continue
					}
					for a := range shown {
						if moved[a] {
							delete(moved, a)
							times = append(times, time.Since(ended).Seconds())
						}
					}
				}
				return len(moved)
			}).WithTimeout(2 * time.Minute).WithPolling(20 * time.Millisecond).Should(BeZero())
			AddReportEntry(fmt.Sprintf("%s: seconds until another host has the first, the median and the last of %d addresses", failure.text, len(times)),
				[]float64{times[0], times[len(times)/2], times[len(times)-1]})
			Expect(most()).To(BeNumerically("<=", 1))
		}
	})
})

// first returns the lowest address.
func first(all map[netip.Addr]bool) netip.Addr {
	out := netip.Addr{}
	for a := range all {
		if !out.IsValid() || a.Less(out) {
			out = a
		}
	}
	return out
}
