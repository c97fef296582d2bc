//go:build linux

package hostlb

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// What installs the program knows it: its flags, its name, and the rights over the machine that docs/host-lb.md says it needs.
func TestDeployed(t *testing.T) {
	g := NewWithT(t)
	root, err := framework.RepoRoot()
	g.Expect(err).NotTo(HaveOccurred())
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, "config", "host-lb", name))
		g.Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	program, err := framework.BuildHost(t.Context(), t.TempDir())
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
	g.Expect(c.ReadinessProbe.HTTPGet.Port.IntValue()).To(Equal(9442))

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
