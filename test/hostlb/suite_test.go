//go:build linux

// Package hostlb runs butler-host-lb as a process, in network namespaces that act as hosts on a switch, against a real
// kube-apiserver and etcd. Nothing leaves the namespaces except requests to the API server. Where no namespace can be
// created, the specs are skipped, with the reason.
package hostlb

import (
	"context"
	"encoding/json"
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
	binaries   programs
	kubeconfig []byte
	worlds     int
)

// lifetime is D of these hosts: longer than a busy machine delays a process.
const lifetime = 5 * time.Second

// observePeriod is how long a spec watches that something does not happen: longer than a host is waited for.
const observePeriod = 2 * lifetime

func TestHosts(t *testing.T) {
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(framework.LongTimeout)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	RunSpecs(t, "Hosts")
}

// programs are what the specs run. They are built once, for all processes that share the specs.
type programs struct{ Host, Manager string }

// The first process builds the programs for all processes that share the specs. Each process has an API server of its
// own.
var _ = SynchronizedBeforeSuite(func(ctx SpecContext) []byte {
	skipWithoutNamespaces()
	var built programs
	var err error
	dir := GinkgoT().TempDir()
	built.Host, err = framework.BuildHostLB(ctx, dir)
	Expect(err).NotTo(HaveOccurred())
	built.Manager, err = framework.BuildManager(ctx, dir)
	Expect(err).NotTo(HaveOccurred())
	out, err := json.Marshal(built)
	Expect(err).NotTo(HaveOccurred())
	return out
}, func(ctx SpecContext, built []byte) {
	skipWithoutNamespaces()
	Expect(json.Unmarshal(built, &binaries)).To(Succeed())
	var err error
	cp, err = framework.StartControlPlane(framework.Options{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
	k8s, err = cp.NewClient()
	Expect(err).NotTo(HaveOccurred())
	kubeconfig, err = cp.HostKubeconfig(ctx)
	Expect(err).NotTo(HaveOccurred())
})

func skipWithoutNamespaces() {
	GinkgoHelper()
	n, err := netns.NewSwitch()
	if err != nil {
		Skip("SKIPPED: " + err.Error())
	}
	Expect(n.Close()).To(Succeed())
}

// world is a switch with hosts and a client on it, in a network domain of its own.
type world struct {
	*netns.Switch

	network string
	client  *netns.Namespace
	hosts   []*host
}

// host is a namespace with the program in it.
type host struct {
	*framework.Host

	world *world
	name  string
	args  []string
}

// newWorld creates a world with n hosts that run. In their flags $HOST is replaced by the name of each.
func newWorld(ctx context.Context, n int, args ...string) *world {
	GinkgoHelper()
	worlds++
	w := &world{network: fmt.Sprintf("w%d", worlds)}
	var err error
	w.Switch, err = netns.NewSwitch()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(w.Close()).To(Succeed()) })
	w.client, err = w.JoinHost("client", netip.MustParsePrefix("192.0.2.250/24"), netip.MustParsePrefix("2001:db8::250/64"))
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

// join puts a host on the switch, without starting the program.
func (w *world) join(ctx context.Context, name string, number int, args ...string) *host {
	GinkgoHelper()
	h := &host{world: w, name: name + "-" + w.network, args: args}
	space, err := w.JoinHost(name, netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", number)), netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", number)),
		netip.MustParsePrefix(fmt.Sprintf("10.9.255.%d/16", number)))
	Expect(err).NotTo(HaveOccurred())
	h.Host, err = cp.JoinHost(ctx, space, binaries.Host, kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	w.hosts = append(w.hosts, h)
	DeferCleanup(func() {
		if CurrentSpecReport().Failed() {
			GinkgoWriter.Println(h.name, "\n"+h.ReadLog())
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
	Expect(h.LaunchProgram(args...)).To(Succeed())
	DeferCleanup(h.Kill)
}

// signal sends a signal to the program.
func (h *host) signal(s syscall.Signal) {
	GinkgoHelper()
	Expect(h.Signal(s)).To(Succeed())
}

func (h *host) awaitHeartbeat(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() error {
		return k8s.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.HeartbeatName(h.name)}, &coordinationv1.Lease{})
	}).Should(Succeed(), h.ReadLog)
}

// serve listens on port 80 of the host, in the place of kube-proxy, and answers with the name of the host.
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

// has reports whether the host has an address of a lease.
func (h *host) has(a netip.Addr) bool { return len(h.interfacesWith(a)) > 0 }

// interfacesWith returns the names of the interfaces that have an address of a lease.
func (h *host) interfacesWith(a netip.Addr) (names []string) {
	var links []netif.Link
	err := h.RunInside(func() (err error) {
		links, err = netif.ListLinks()
		return err
	})
	Expect(err).NotTo(HaveOccurred())
	for _, l := range links {
		if slices.Contains(l.Managed, a) {
			names = append(names, l.Name)
		}
	}
	return names
}

// hostsWith returns the hosts that have an address.
func (w *world) hostsWith(a netip.Addr) []*host {
	var out []*host
	for _, h := range w.hosts {
		if h.has(a) {
			out = append(out, h)
		}
	}
	return out
}

// waitForOnlyHost waits until exactly one host has an address, and returns that host.
func (w *world) waitForOnlyHost(a netip.Addr) *host {
	GinkgoHelper()
	var out []*host
	Eventually(func() []*host { out = w.hostsWith(a); return out }).Should(HaveLen(1))
	return out[0]
}

// others returns all hosts except one.
func (w *world) others(not *host) []*host {
	return slices.DeleteFunc(slices.Clone(w.hosts), func(h *host) bool { return h == not })
}

// respondingHost returns the name of the host that answers the client, or "" if none does.
func (w *world) respondingHost(ctx context.Context, a netip.Addr) string {
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

// atMostOne watches an address until the returned function is called, which returns how many hosts had the address at
// once at most.
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
				n = max(n, len(w.hostsWith(a)))
			}
		}
	}()
	return func() int {
		end()
		return <-most
	}
}

// lease creates a lease that hosts must show, as the manager does, and removes it in the end.
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
		removeLeaseFinalizers(ctx, o)
	})
	return o
}

// removeLeaseFinalizers removes the finalizers of a lease.
func removeLeaseFinalizers(ctx context.Context, o *v1alpha1.IPLease) {
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

// lock returns the current lock of an address and its holder; a lock without an address means that there is none.
func (w *world) lock(ctx context.Context, a netip.Addr) (record.Lock, string) {
	GinkgoHelper()
	o := &coordinationv1.Lease{}
	err := k8s.Get(ctx, client.ObjectKey{Namespace: record.Namespace, Name: record.LockName(a, w.network)}, o)
	if apierrors.IsNotFound(err) {
		return record.Lock{}, ""
	}
	Expect(err).NotTo(HaveOccurred())
	l, holder, err := record.ParseLock(o)
	Expect(err).NotTo(HaveOccurred())
	return l, holder
}

// report returns a function that returns the report of the holder of an address.
func (w *world) report(ctx context.Context, a netip.Addr) func() record.Report {
	return func() record.Report {
		l, _ := w.lock(ctx, a)
		if l.Report == nil {
			return record.Report{}
		}
		return *l.Report
	}
}

// writes returns the versions of all locks of the world.
func (w *world) writes(ctx context.Context) map[string]string {
	GinkgoHelper()
	all := &coordinationv1.LeaseList{}
	Expect(k8s.List(ctx, all, client.InNamespace(record.Namespace))).To(Succeed())
	out := map[string]string{}
	for i := range all.Items {
		if o := &all.Items[i]; record.IsLockName(o.Name) && strings.HasSuffix(o.Name, "-"+w.network) {
			out[o.Name] = o.ResourceVersion
		}
	}
	return out
}

// sendUDP sends a UDP packet from the client, and returns the answer.
func (w *world) sendUDP(ctx context.Context, to netip.AddrPort, text string) string {
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
