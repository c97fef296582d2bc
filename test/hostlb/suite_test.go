//go:build linux

// Package hostlb runs butler-host-lb, as a process, in network namespaces that stand for hosts on a switch, against a real
// kube-apiserver and etcd. Nothing leaves the namespaces but what is for the API server. Where none can be made, the specs are
// skipped, and say so.
package hostlb

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/netif"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/record"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/netns"
)

var (
	cp         *framework.ControlPlane
	k8s        client.WithWatch
	binary     string
	kubeconfig []byte
	worlds     int
)

// lifetime is D of these hosts: longer than a busy machine keeps a process waiting.
const lifetime = 5 * time.Second

// forLong is how long something is watched that is not to happen: longer than a host is waited for.
const forLong = 2 * lifetime

func TestHosts(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(framework.Late)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	RunSpecs(t, "Hosts")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	n, err := netns.New()
	if err != nil {
		Skip("SKIPPED: " + err.Error())
	}
	Expect(n.Close()).To(Succeed())
	cp, err = framework.Start(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
	k8s, err = cp.Client()
	Expect(err).NotTo(HaveOccurred())
	binary, err = framework.BuildHost(ctx, GinkgoT().TempDir())
	Expect(err).NotTo(HaveOccurred())
	kubeconfig, err = cp.HostKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
})

// world is a switch with hosts and a client on it, in a network domain of its own.
type world struct {
	*netns.Net

	network string
	client  *netns.Space
	hosts   []*host
}

// host is a namespace with a program in it.
type host struct {
	*framework.Host

	world *world
	name  string
	args  []string
}

// newWorld makes a world with so many hosts, which run. In their flags $HOST is the name of each.
func newWorld(ctx context.Context, n int, args ...string) *world {
	GinkgoHelper()
	worlds++
	w := &world{network: fmt.Sprintf("w%d", worlds)}
	var err error
	w.Net, err = netns.New()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(w.Close()).To(Succeed()) })
	w.client, err = w.Join("client", netip.MustParsePrefix("192.0.2.250/24"), netip.MustParsePrefix("2001:db8::250/64"))
	Expect(err).NotTo(HaveOccurred())
	for i := range n {
		h := w.join(ctx, fmt.Sprintf("h%d", i+1), i+1, args...)
		h.serve(ctx)
		h.start()
	}
	for _, h := range w.hosts {
		h.awaitHeartbeat(ctx)
	}
	return w
}

// join puts a host on the switch, which does not run yet.
func (w *world) join(ctx context.Context, name string, number int, args ...string) *host {
	GinkgoHelper()
	h := &host{world: w, name: name + "-" + w.network, args: args}
	space, err := w.Join(name, netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", number)), netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", number)),
		netip.MustParsePrefix(fmt.Sprintf("10.9.255.%d/16", number)))
	Expect(err).NotTo(HaveOccurred())
	h.Host, err = cp.JoinHost(ctx, space, binary, kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	w.hosts = append(w.hosts, h)
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(h.name, "\n"+h.Log())
		}
	})
	return h
}

// start starts the program on a host.
func (h *host) start() {
	GinkgoHelper()
	args := []string{"--host-name=" + h.name, "--network=" + h.world.network, "--lease-duration=" + lifetime.String()}
	for _, arg := range h.args {
		args = append(args, strings.ReplaceAll(arg, "$HOST", h.name))
	}
	Expect(h.Launch(args...)).To(Succeed())
	DeferCleanup(h.Kill)
}

// signal sends the program a signal.
func (h *host) signal(s syscall.Signal) {
	GinkgoHelper()
	Expect(h.Signal(s)).To(Succeed())
}

func (h *host) awaitHeartbeat(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error {
		return k8s.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HostName(h.name)}, &coordinationv1.Lease{})
	}).Should(Succeed(), h.Log)
}

// serve listens on port 80 of the host, as kube-proxy has it answered, and tells who it is.
func (h *host) serve(ctx context.Context) {
	GinkgoHelper()
	l, err := h.Listen(ctx, ":80")
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(h.name))
			_ = c.Close()
		}
	}()
}

// has reports whether the host has an address of ours.
func (h *host) has(a netip.Addr) bool { return len(h.interfacesWith(a)) > 0 }

// interfacesWith returns the names of the interfaces that have an address of ours.
func (h *host) interfacesWith(a netip.Addr) (names []string) {
	var links []netif.Link
	err := h.Do(func() (err error) {
		links, err = netif.Read()
		return err
	})
	Expect(err).NotTo(HaveOccurred())
	for _, l := range links {
		if slices.Contains(l.Ours, a) {
			names = append(names, l.Name)
		}
	}
	return names
}

// on are the hosts that have an address.
func (w *world) on(a netip.Addr) []*host {
	var out []*host
	for _, h := range w.hosts {
		if h.has(a) {
			out = append(out, h)
		}
	}
	return out
}

// theOne waits until exactly one host has an address, and returns that.
func (w *world) theOne(a netip.Addr) *host {
	GinkgoHelper()
	var out []*host
	Eventually(func() []*host { out = w.on(a); return out }).Should(HaveLen(1))
	return out[0]
}

// others are all hosts but one.
func (w *world) others(not *host) []*host {
	return slices.DeleteFunc(slices.Clone(w.hosts), func(h *host) bool { return h == not })
}

// reached is the host that answers to the client, empty: none.
func (w *world) reached(ctx context.Context, a netip.Addr) string {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	c, err := w.client.Dial(ctx, "tcp", netip.AddrPortFrom(a, 80).String())
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	buffer := make([]byte, 100)
	n, _ := c.Read(buffer)
	return string(buffer[:n])
}

// atMostOne watches an address until the returned function is called, which says how many hosts had it at once at most.
func (w *world) atMostOne(a netip.Addr) func() int {
	stop, most := make(chan struct{}), make(chan int)
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }) }
	DeferCleanup(end)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				most <- n
				return
			case <-time.After(10 * time.Millisecond):
				n = max(n, len(w.on(a)))
			}
		}
	}()
	return func() int {
		end()
		return <-most
	}
}

// lease makes a lease that hosts are to show, as the manager does it, and removes it in the end.
func (w *world) lease(ctx context.Context, a netip.Addr, ports ...v1alpha1.LeasedPort) *v1alpha1.IPLease {
	GinkgoHelper()
	o := framework.MakeLease("default", strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())+"-"+w.network).Pool("public").Obj()
	o.Finalizers = []string{v1alpha1.IPLeaseFinalizer, v1alpha1.LeaseShownFinalizer}
	Expect(k8s.Create(ctx, o)).To(Succeed())
	if len(ports) == 0 {
		ports = []v1alpha1.LeasedPort{{Protocol: corev1.ProtocolTCP, Port: 80, Service: "web", UID: "u"}}
	}
	o.Status = v1alpha1.IPLeaseStatus{Address: a.String(), Network: w.network, ShownBy: v1alpha1.ShownByHost, Ports: ports}
	Expect(k8s.Status().Update(ctx, o)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(k8s.Delete(ctx, o))).To(Succeed())
		free(ctx, o)
	})
	return o
}

// free takes the finalizers of a lease away.
func free(ctx context.Context, o *v1alpha1.IPLease) {
	GinkgoHelper()
	Eventually(func() error {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err != nil {
			return client.IgnoreNotFound(err)
		}
		o.Finalizers = nil
		return client.IgnoreNotFound(k8s.Update(ctx, o))
	}).Should(Succeed())
}

// lock is the lock of an address, as it is now; without an address: there is none.
func (w *world) lock(ctx context.Context, a netip.Addr) (record.Lock, string) {
	GinkgoHelper()
	o := &coordinationv1.Lease{}
	err := k8s.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.LockName(a, w.network)}, o)
	if apierrors.IsNotFound(err) {
		return record.Lock{}, ""
	}
	Expect(err).NotTo(HaveOccurred())
	l, holder, err := record.LockOf(o)
	Expect(err).NotTo(HaveOccurred())
	return l, holder
}

// report is what the holder of an address says of it.
func (w *world) report(ctx context.Context, a netip.Addr) func() record.Report {
	return func() record.Report {
		l, _ := w.lock(ctx, a)
		if l.Report == nil {
			return record.Report{}
		}
		return *l.Report
	}
}

// writes are the versions of all Leases of the world that are no heartbeats.
func (w *world) writes(ctx context.Context) map[string]string {
	GinkgoHelper()
	all := &coordinationv1.LeaseList{}
	Expect(k8s.List(ctx, all, client.InNamespace(record.Namespace))).To(Succeed())
	out := map[string]string{}
	for i := range all.Items {
		if o := &all.Items[i]; record.IsLock(o.Name) && strings.HasSuffix(o.Name, "-"+w.network) {
			out[o.Name] = o.ResourceVersion
		}
	}
	return out
}

// ping sends a packet of UDP from the client, and returns the answer.
func (w *world) ping(ctx context.Context, to netip.AddrPort, text string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := w.client.Dial(ctx, "udp", to.String())
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte(text)); err != nil {
		return err.Error()
	}
	buffer := make([]byte, 1500)
	n, err := c.Read(buffer)
	if err != nil {
		return err.Error()
	}
	return string(buffer[:n])
}
