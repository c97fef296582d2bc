//go:build linux

package hostlb

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/netns"
)

// skipInOtherProcesses skips a test in all but the first of the processes that share the specs: each of them runs all
// tests of the package.
func skipInOtherProcesses(t *testing.T) {
	t.Helper()
	if ginkgo.GinkgoParallelProcess() != 1 {
		t.Skip("the first process runs it")
	}
}

// TestManifestsMatchProgram checks that the manifests match the program: its flags, its name, and the rights over the
// machine that docs/host-lb.md lists.
func TestManifestsMatchProgram(t *testing.T) {
	skipInOtherProcesses(t)
	g := NewWithT(t)
	root, err := framework.FindRepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, "config", "host-lb", name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	program, err := framework.BuildHostLB(t.Context(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	help, err := exec.CommandContext(t.Context(), program, "--help").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred())
	flag := regexp.MustCompile(`--([a-z-]+)`)
	known := map[string]bool{}
	for _, m := range flag.FindAllStringSubmatch(string(help), -1) {
		known[m[1]] = true
	}

	var ds appsv1.DaemonSet
	g.Expect(yaml.UnmarshalStrict([]byte(read("daemonset.yaml")), &ds)).To(Succeed())
	c := ds.Spec.Template.Spec.Containers[0]
	g.Expect(c.Command).To(Equal([]string{"/butler-host-lb"}))
	g.Expect(ds.Spec.Template.Spec.HostNetwork).To(BeTrue())
	g.Expect(*ds.Spec.Template.Spec.TerminationGracePeriodSeconds).To(BeNumerically(">", 10), "it gives its addresses up first")
	unit := read("butler-host-lb.service")
	start := regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindStringSubmatch(unit)
	g.Expect(start).To(HaveLen(2))
	for _, m := range flag.FindAllStringSubmatch(strings.Join(c.Args, " ")+" "+start[1], -1) {
		g.Expect(known).To(HaveKey(m[1]), "a flag that is set")
	}
	needs := []corev1.Capability{"NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE"}
	g.Expect(c.SecurityContext.Capabilities.Add).To(Equal(needs))
	g.Expect(c.SecurityContext.Capabilities.Drop).To(Equal([]corev1.Capability{"ALL"}))
	for _, set := range []string{"AmbientCapabilities", "CapabilityBoundingSet"} {
		g.Expect(unit).To(ContainSubstring(set + "=CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE\n"))
	}
	g.Expect(c.Resources.Limits.Memory().Value()).To(BeNumerically(">", c.Resources.Requests.Memory().Value()), "what leaks ends before the Node does")

	for args, want := range map[string]string{
		"--host-name=A_b":     "--host-name=A_b: must be a name of lower case letters",
		"--lease-duration=1s": "--lease-duration=1s: must be whole seconds from 3s to 5m",
		"--forward=ipvs":      "--forward=ipvs: must be none or proxy",
		"--backends=pods":     "--backends=pods: must be one of clusterip, endpoints, nodeports",
		"--network=-":         "--network=-: must be a name",
		"--unknown":           "unknown flag",
		"now":                 `"now": butler-host-lb takes flags only`,
	} {
		out, err := exec.CommandContext(t.Context(), program, args).CombinedOutput()
		g.Expect(err).To(HaveOccurred())
		g.Expect(string(out)).To(And(ContainSubstring(want), ContainSubstring("--help lists the flags")), args)
	}
	version, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(version)).To(HavePrefix("butler-host-lb v"))
}

// TestProbesWithoutAPIServer checks that the kubelet finds the probes of the DaemonSet where the program
// serves them, on loopback, as docs/host-lb.md describes: the program is alive, and not ready while no API server
// answers. It waits for one, logs that once, and does not exit.
func TestProbesWithoutAPIServer(t *testing.T) {
	skipInOtherProcesses(t)
	g := NewWithT(t)
	n, err := netns.NewSwitch()
	if err != nil {
		t.Skip("SKIPPED: " + err.Error())
	}
	t.Cleanup(func() { g.Expect(n.Close()).To(Succeed()) })
	space, err := n.JoinHost("alone", netip.MustParsePrefix("192.0.2.1/24"))
	g.Expect(err).NotTo(HaveOccurred())
	root, err := framework.FindRepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	text, err := os.ReadFile(filepath.Join(root, "config", "host-lb", "daemonset.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var ds appsv1.DaemonSet
	g.Expect(yaml.UnmarshalStrict(text, &ds)).To(Succeed())
	c := ds.Spec.Template.Spec.Containers[0]

	dir := t.TempDir()
	program, err := framework.BuildHostLB(t.Context(), dir)
	g.Expect(err).NotTo(HaveOccurred())
	kubeconfig := filepath.Join(dir, "kubeconfig")
	nowhere := clientcmdapi.NewConfig()
	nowhere.Clusters["nowhere"] = &clientcmdapi.Cluster{Server: "http://127.0.0.1:1"}
	listener, err := space.Listen(t.Context(), "127.0.0.1:1")
	g.Expect(err).NotTo(HaveOccurred())
	var tries atomic.Int32
	fails := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, fmt.Sprintf("failure %d", tries.Add(1)), http.StatusInternalServerError) // with another text each time
	})}
	go func() { _ = fails.Serve(listener) }()
	t.Cleanup(func() { _ = fails.Close() })
	nowhere.Contexts["nowhere"], nowhere.CurrentContext = &clientcmdapi.Context{Cluster: "nowhere"}, "nowhere"
	g.Expect(clientcmd.WriteToFile(*nowhere, kubeconfig)).To(Succeed())
	args := append([]string{"--kubeconfig=" + kubeconfig}, c.Args...)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(NODE_NAME)", "node")
	}
	output := &writer{}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = output, output
	g.Expect(space.StartProcess(cmd)).To(Succeed())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})

	kubelet := &http.Client{Transport: &http.Transport{DialContext: space.Dial}}
	answer := func(p *corev1.Probe) func() (int, error) {
		at := url.URL{Scheme: "http", Host: net.JoinHostPort(p.HTTPGet.Host, p.HTTPGet.Port.String()), Path: p.HTTPGet.Path}
		return func() (int, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at.String(), http.NoBody)
			if err != nil {
				return 0, err
			}
			resp, err := kubelet.Do(req)
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		}
	}
	g.Expect(netip.MustParseAddr(c.LivenessProbe.HTTPGet.Host).IsLoopback()).To(BeTrue(), "they need no credentials")
	g.Eventually(answer(c.LivenessProbe)).WithTimeout(framework.LongTimeout).Should(Equal(http.StatusOK), output.String)
	g.Expect(answer(c.ReadinessProbe)()).To(Equal(http.StatusServiceUnavailable), output.String())
	g.Eventually(output.String).WithTimeout(framework.LongTimeout).Should(ContainSubstring("Waiting for the API server"))
	had := tries.Load()
	g.Eventually(tries.Load).WithTimeout(framework.LongTimeout).Should(BeNumerically(">", had+3))
	g.Expect(strings.Count(output.String(), "Waiting for the API server")).To(Equal(1), output.String())
	g.Expect(ended).NotTo(BeClosed(), output.String())
}
