package clusterctl

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// releases is the address at which releases will be published.
const releases = "https://github.com/butlerdotdev/cluster-api-ipam-provider-butler/releases/latest/"

// withTestRelease replaces the published release in a command by the release of this test.
func withTestRelease(command string) string {
	return strings.ReplaceAll(strings.ReplaceAll(command, releases+"download/", releases), releases, filepath.Join(repo.dir, "ipam-butler", release)+"/")
}

const takenOffReason = "killed_test.go takes copies off the target of a move that was interrupted in this way"

// skippedCommands are the beginnings of commands that are not run here, with the reason.
var skippedCommands = map[string]string{
	"clusterctl delete --ipam in":        "install_test.go: what it leaves of ours",
	"clusterctl generate cluster":        "test/consumers: its templates",
	"clusterctl init --ipam in-c":        "a release of others, which is not here",
	"clusterctl move":                    "move_test.go",
	"docker ":                            "there is none; the image is unpacked and run in test/image",
	"go install":                         "a release, from a proxy",
	"go test":                            "measurements of minutes",
	"kind load":                          "there is none",
	"kubectl annotate ipaddressp":        "test/e2e: foreign_test.go hands a pool of a workload cluster over",
	"kubectl annotate globalnetw":        "test/clusterctl: move_test.go opens a copied pool",
	"kubectl annotate networkpool":       "test/integration: copied_test.go opens a pool that came from elsewhere",
	"kubectl annotate incluster":         "test/integration: incluster_test.go names mirrors of pools that are handed over",
	"kubectl butler-ipam drop-in":        "test/cli",
	"kubectl butler-ipam hand-ba":        "test/cli",
	"kubectl delete ipaddress -n N":      takenOffReason,
	"kubectl delete ipaddressclaim -n N": takenOffReason,
	"kubectl patch ipaddress -n N":       takenOffReason,
	"kubectl patch ipaddressclaim -n N":  takenOffReason,
	"kubectl delete inclusterip":         "test/integration: gc_ended_test.go deletes pools that were handed over",
	"kubectl delete ipallocation":        "test/e2e: cilium_test.go moves a Cluster to another load balancer",
	"kubectl logs":                       "there are no Pods; test/integration: audit_test.go looks for what it greps",
	"kubectl patch cluster -n NAM":       "resumed_test.go unpauses a Cluster of the source in this way",
	"kubectl port-forward":               "there are no Pods",
	"make image VERSION":                 "test/image",
	"make manager":                       "the manager of these tests is built with the same flags",
	"make release-dry-run":               "a release, which takes minutes; test/release compares its steps with those of the workflow",
	"mkdir image && tar":                 "there is no crane",
	"podman ":                            "as docker",
	"skopeo ":                            "as docker",
}

// mentioned are commands that the text names, but that are not complete as written.
var mentioned = []string{
	"clusterctl move", "clusterctl upgrade apply", "kubectl apply", "kubectl apply -f", "kubectl butler-ipam import", "kubectl delete", "kubectl delete -f",
	"kubectl butler-ipam who --services",
	"kubectl delete --cascade=foreground", "kubectl describe pod", "kubectl butler-ipam audit --rollback", "make clean",
}

// skippedEntry returns the entry of skippedCommands that matches a command, or "".
func skippedEntry(command string) string {
	for begins := range skippedCommands {
		if strings.HasPrefix(command, begins) {
			return begins
		}
	}
	return ""
}

var ages = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \([^)]*\)|\b\d+m?s\b`)

func ageless(text string) string { return ages.ReplaceAllString(strings.TrimSpace(text), "AGE") }

var _ = Describe("The documentation", Ordered, func() {
	var s *site
	var at terminal
	ran := map[string]bool{}
	// do runs a command of a page.
	do := func(ctx SpecContext, path, command string) {
		GinkgoHelper()
		for _, p := range pages() {
			if p.path == path {
				Expect(p.commands()).To(ContainElement(command), path)
			}
		}
		ran[command] = true
		// clusterctl tests cert-manager in a namespace, and does not wait until the namespace is deleted: the next
		// clusterctl would time out.
		Eventually(func() error {
			return s.Get(ctx, client.ObjectKey{Name: "cert-manager-test"}, &corev1.Namespace{})
		}).WithTimeout(framework.LongTimeout).Should(Satisfy(apierrors.IsNotFound))
		at.run(ctx, withTestRelease(command))
	}
	BeforeAll(func(ctx SpecContext) {
		s = startSite()
		at = newTerminal(ctx, s, repo.root)
		s.clusterctl(ctx, "init", "--core", "cluster-api:"+repo.core, "--bootstrap", "-", "--control-plane", "-")
		Expect(s.InstallInClusterPools()).To(Succeed())
		Expect(s.InstallMetal3Pools(ctx)).To(Succeed())
	})

	It("describes an installation that succeeds", func(ctx SpecContext) {
		text, err := os.ReadFile(filepath.Join(repo.root, "docs", "install.md"))
		Expect(err).NotTo(HaveOccurred())
		shown := regexp.MustCompile(`(?m)^    providers:\n(?:    .*\n)+`).FindString(string(text))
		Expect(shown).NotTo(BeEmpty())
		config := map[string]any{}
		Expect(yaml.Unmarshal([]byte(strings.ReplaceAll(shown, releases, filepath.Join(repo.dir, "ipam-butler", release)+"/")), &config)).To(Succeed())
		others := map[string]any{}
		known, err := os.ReadFile(filepath.Join(repo.dir, "clusterctl.yaml"))
		Expect(err).NotTo(HaveOccurred())
		Expect(yaml.Unmarshal(known, &others)).To(Succeed())
		core := others["providers"].([]any)[0]
		config["providers"] = append(config["providers"].([]any), core)
		config["cert-manager"] = others["cert-manager"]
		text, err = yaml.Marshal(config)
		Expect(err).NotTo(HaveOccurred())
		repo.write("cluster-api/clusterctl.yaml", text) // the default path of clusterctl's configuration

		do(ctx, "docs/install.md", "clusterctl init --ipam butler")
		do(ctx, "docs/install.md", "kubectl apply -f "+releases+"download/component-load-balancers.yaml")
		do(ctx, "docs/install.md", "kubectl rollout restart -n butler-ipam-system deployment butler-ipam-controller-manager")
		s.add(ctx, "leases")
		s.run(ctx)
	})

	It("has a getting-started session with the real output of its commands", func(ctx SpecContext) {
		path := filepath.Join(repo.root, "docs", "getting-started.md")
		text, err := os.ReadFile(path)
		Expect(err).NotTo(HaveOccurred())
		desk := at
		desk.dir = GinkgoT().TempDir()
		for _, m := range manifest.FindAllStringSubmatch(string(text), -1) {
			Expect(os.WriteFile(filepath.Join(desk.dir, m[1]), []byte(m[2]), 0o600)).To(Succeed())
		}
		var differs []string
		for _, shown := range (page{path, string(text)}).sessions() {
			printed, _ := desk.try(ctx, shown[0]) // to explain a waiting claim fails by design
			if ageless(printed) != ageless(shown[1]) {
				differs = append(differs, "$ "+shown[0]+"\n"+printed)
			}
		}
		Expect(strings.Join(differs, "\n")).To(BeEmpty())
	})

	It("has commands that succeed", func(ctx SpecContext) {
		scene, err := os.ReadFile("testdata/documented.yaml")
		Expect(err).NotTo(HaveOccurred())
		repo.write("scene.yaml", slices.Concat(scene, kind("monitoring.coreos.com", "PrometheusRule"), kind("monitoring.coreos.com", "ServiceMonitor")))
		at.run(ctx, "kubectl apply --server-side -f "+filepath.Join(repo.dir, "scene.yaml"))
		at.run(ctx, "kubectl wait -n team-a --for=condition=Ready ipaddressclaim/prod --timeout=60s")
		at.run(ctx, "kubectl wait --for=condition=Ready iplease/shop --timeout=60s")
		var failed []string // all failures, so that one run shows the errors of all pages
		for _, p := range pages() {
			for _, command := range p.commands() {
				if ran[command] || p.path == "docs/install.md" || slices.Contains(mentioned, command) || skippedEntry(command) != "" {
					continue
				}
				By(p.path + ": " + command)
				ran[command] = true
				if target, ok := strings.CutPrefix(command, "make "); ok {
					at.run(ctx, "make -n "+target) // checks that the target exists; tests and CI check what it does
					continue
				}
				if out, err := at.try(ctx, withTestRelease(command)); err != nil {
					failed = append(failed, fmt.Sprintf("%s: %s\n%s%v", p.path, command, out, err))
				}
			}
		}
		Expect(strings.Join(failed, "\n")).To(BeEmpty())
	})

	It("has a kustomization that excludes the CRDs from pruning", func(ctx SpecContext) {
		text, err := os.ReadFile(filepath.Join(repo.root, "docs", "gitops.md"))
		Expect(err).NotTo(HaveOccurred())
		shown := regexp.MustCompile(`(?m)^    resources:\n    - ipam-components.yaml\n(?:    .*\n)+`).FindString(string(text))
		Expect(shown).NotTo(BeEmpty())
		desk := at
		desk.dir = GinkgoT().TempDir()
		Expect(os.WriteFile(filepath.Join(desk.dir, "kustomization.yaml"), []byte(regexp.MustCompile(`(?m)^    `).ReplaceAllString(shown, "")), 0o600)).To(Succeed())
		desk.run(ctx, "cp "+filepath.Join(repo.dir, "ipam-butler", release)+"/*components.yaml "+filepath.Join(repo.dir, "ipam-butler", release)+"/component-*.yaml .")
		crds := 0
		for doc := range strings.SplitSeq(desk.run(ctx, "kustomize build"), "\n---\n") {
			if strings.Contains(doc, "\nkind: CustomResourceDefinition\n") {
				crds++
				Expect(doc).To(ContainSubstring("kustomize.toolkit.fluxcd.io/prune: disabled"))
			}
		}
		Expect(crds).To(BeNumerically(">", 1))
	})

	It("binds the role of a component to the ServiceAccount of the manager", func(ctx SpecContext) {
		binding := &rbacv1.ClusterRoleBinding{}
		Expect(s.Get(ctx, client.ObjectKey{Name: "butler-ipam-in-cluster-pools"}, binding)).To(Succeed())
		Expect(s.Get(ctx, client.ObjectKey{Name: binding.RoleRef.Name}, &rbacv1.ClusterRole{})).To(Succeed())
		subject := binding.Subjects[0]
		Expect(s.Get(ctx, client.ObjectKey{Namespace: subject.Namespace, Name: subject.Name}, &corev1.ServiceAccount{})).To(Succeed())
		pod := s.deployment(ctx).Spec.Template.Spec
		Expect(pod.ServiceAccountName).To(Equal(subject.Name))
		flags := &corev1.ConfigMap{}
		Expect(s.Get(ctx, client.ObjectKey{Namespace: subject.Namespace, Name: "butler-ipam-in-cluster-pools"}, flags)).To(Succeed())
		Expect(flags.Data).To(Equal(map[string]string{"serve-in-cluster-pools": "true"}))
		Expect(pod.Containers[0].EnvFrom).To(ContainElement(HaveField("ConfigMapRef.Name", flags.Name)))
	})

	It("describes an upgrade, the removal and further installations that succeed", func(ctx SpecContext) {
		Expect(s.manager.Stop()).To(Succeed())
		component := func() error {
			return s.Get(ctx, client.ObjectKey{Name: "butler-ipam-load-balancers"}, &rbacv1.ClusterRoleBinding{})
		}
		for _, command := range []string{
			"kubectl create configmap -n butler-ipam-system butler-ipam-flags --from-literal=shrink-grace=30m",
			"kubectl get clusters -A -l butler.butlerlabs.dev/provider-config",
			"kubectl label cluster -n NAMESPACE NAME butler.butlerlabs.dev/provider-config-",
			"kubectl butler-ipam audit --move", "kubectl butler-ipam audit --strict",
			"kubectl label ipaddressclaims -n NAMESPACE NAME clusterctl.cluster.x-k8s.io/move=",
			"clusterctl upgrade plan", "clusterctl upgrade apply --ipam butler:" + newer,
		} {
			do(ctx, "docs/install.md", command)
		}
		Expect(component()).To(Succeed(), "an upgrade takes no component away")
		Expect(s.Get(ctx, client.ObjectKey{Namespace: "butler-ipam-system", Name: "butler-ipam-load-balancers"}, &corev1.ConfigMap{})).To(Succeed())
		for _, command := range []string{
			"clusterctl delete --ipam butler",
			"clusterctl init --ipam butler --target-namespace NAMESPACE", "clusterctl delete --ipam butler",
			"kubectl apply -f " + releases + "download/ipam-components.yaml",
			"kubectl scale -n butler-ipam-system deployment butler-ipam-controller-manager --replicas=2",
			"kubectl apply -f " + releases + "download/policy.yaml",
			"kubectl delete validatingwebhookconfiguration butler-ipam-validating-webhook-configuration",
			"make release-manifests VERSION=v0.1.0 IMAGE=mirror.example.com/butler:v0.1.0",
		} {
			do(ctx, "docs/install.md", command)
		}
	})

	It("describes how to run the manager outside of a cluster", func(ctx SpecContext) {
		there := at.dir
		at.dir = GinkgoT().TempDir()
		DeferCleanup(func() { at.dir = there })
		for _, command := range []string{
			"kubectl scale -n butler-ipam-system deployment butler-ipam-controller-manager --replicas=0",
			"kubectl config view --minify --flatten > manager.kubeconfig",
			"kubectl --kubeconfig=manager.kubeconfig config unset users",
			`kubectl --kubeconfig=manager.kubeconfig config set-credentials manager --token="$(kubectl create token -n butler-ipam-system butler-ipam-system-manager --duration=24h)"`,
			"kubectl --kubeconfig=manager.kubeconfig config set-context --current --user=manager",
		} {
			do(ctx, "docs/install.md", command)
		}
		m, err := framework.StartManager(ctx, framework.ManagerOptions{Binary: binary, Kubeconfig: filepath.Join(at.dir, "manager.kubeconfig")})
		Expect(err).NotTo(HaveOccurred())
		identity := at.run(ctx, "kubectl --kubeconfig=manager.kubeconfig auth whoami")
		Expect(m.Stop()).To(Succeed())
		Expect(identity).To(ContainSubstring("system:serviceaccount:butler-ipam-system:butler-ipam-system-manager"))
	})

	It("has no command that this suite neither runs nor skips for a reason, and every skipped command exists", func() {
		left, named := map[string]bool{}, map[string]bool{}
		for _, p := range pages() {
			for _, command := range p.commands() {
				begins := skippedEntry(command)
				switch {
				case ran[command]:
				case slices.Contains(mentioned, command):
					named[command] = true
				case begins != "":
					left[begins] = true
				default:
					Fail(fmt.Sprintf("%s: no program runs %q", p.path, command))
				}
			}
		}
		Expect(left).To(HaveLen(len(skippedCommands)))
		Expect(named).To(HaveLen(len(mentioned)))
	})
})
