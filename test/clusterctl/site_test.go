package clusterctl

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const namespace = "butler-ipam-system"

// commandTimeout ends a command that hangs, so that the failure names it.
const commandTimeout = 3 * time.Minute

// site is a management cluster with its manager.
type site struct {
	*framework.ControlPlane
	client.WithWatch
	manager *framework.Manager
}

// startSite starts a management cluster without any provider.
func startSite() *site {
	GinkgoHelper()
	cp, err := framework.StartControlPlane(framework.Options{NoCRDs: true})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(cp.Stop()).To(Succeed()) })
	stop, err := cp.StartControllerManager()
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(stop()).To(Succeed()) })
	admin, err := cp.NewClient()
	Expect(err).NotTo(HaveOccurred())
	s := &site{ControlPlane: cp, WithWatch: admin}
	DeferCleanup(func(ctx SpecContext) {
		if CurrentSpecReport().Failed() {
			s.describe(ctx)
		}
		if s.manager != nil {
			Expect(s.manager.Kill()).To(Succeed()) // no effect if the spec has ended it
		}
	})
	return s
}

// describe prints the objects of a site, for a failed spec.
func (s *site) describe(ctx context.Context) {
	all := "clusters,networkpools,globalnetworkpools,ipallocations,ipleases,clustercidrs"
	out, err := exec.CommandContext(ctx, filepath.Join(repo.root, "bin", "k8s", "kubectl"), "--kubeconfig="+s.Kubeconfig, "get", all, "-A", "-o", "yaml").CombinedOutput()
	GinkgoWriter.Printf("%s\n%v\n", out, err)
	if s.manager != nil {
		GinkgoWriter.Println(s.manager.LogTail(300))
	}
}

// clusterctl runs clusterctl against the site, and returns its output.
func (s *site) clusterctl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	args = append(args, "--kubeconfig", s.Kubeconfig)
	return clusterctl(ctx, args...)
}

func clusterctl(ctx context.Context, args ...string) string {
	GinkgoHelper()
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := clusterctlCommand(ctx, args...).CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "clusterctl %v\n%s", args, out)
	GinkgoWriter.Printf("clusterctl %v\n%s\n", args, out)
	return string(out)
}

// clusterctlCommand returns a clusterctl command that finds the releases of the test.
func clusterctlCommand(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"--config", filepath.Join(repo.dir, "clusterctl.yaml")}, args...) // a later flag takes precedence
	cmd := exec.CommandContext(ctx, filepath.Join(repo.root, "bin", "tools", "clusterctl"), args...)
	cmd.Env = append(os.Environ(), "CLUSTERCTL_DISABLE_VERSIONCHECK=true", "XDG_CONFIG_HOME="+repo.dir)
	return cmd
}

// init installs CAPI and this provider; a subcommand of init runs for the same providers.
func (s *site) init(ctx context.Context, subcommand ...string) string {
	GinkgoHelper()
	return s.clusterctl(ctx, append(append([]string{"init"}, subcommand...),
		"--core", "cluster-api:"+repo.core, "--bootstrap", "-", "--control-plane", "-", "--ipam", "butler")...)
}

// deployment returns the Deployment of the manager.
func (s *site) deployment(ctx context.Context) *appsv1.Deployment {
	GinkgoHelper()
	d := &appsv1.Deployment{}
	Expect(s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "butler-ipam-controller-manager"}, d)).To(Succeed())
	return d
}

// add applies components of the release, as docs/install.md describes. The next run includes them.
func (s *site) add(ctx context.Context, components ...string) {
	GinkgoHelper()
	for _, c := range components {
		file := filepath.Join(repo.dir, "ipam-butler", release, "component-"+c+".yaml")
		repo.run(ctx, filepath.Join(repo.root, "bin", "k8s", "kubectl"), "--kubeconfig="+s.Kubeconfig, "apply", "-f", file)
	}
}

// flags returns the flags that the Pods of the manager get from ConfigMaps.
func (s *site) flags(ctx context.Context, from []corev1.EnvFromSource) (out []string) {
	GinkgoHelper()
	for _, source := range from {
		set := &corev1.ConfigMap{}
		err := s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: source.ConfigMapRef.Name}, set)
		Expect(client.IgnoreNotFound(err)).To(Succeed())
		for flag, value := range set.Data {
			out = append(out, "--"+flag+"="+value)
		}
	}
	return out
}

// run starts the installed manager, with its components, and points the webhooks to it.
func (s *site) run(ctx context.Context) {
	GinkgoHelper()
	pod := s.deployment(ctx).Spec.Template.Spec
	kubeconfig, err := s.ServiceAccountKubeconfig(ctx, namespace, pod.ServiceAccountName)
	Expect(err).NotTo(HaveOccurred())
	port, err := framework.FreePort()
	Expect(err).NotTo(HaveOccurred())
	certs := GinkgoT().TempDir()
	ca, err := framework.WriteServingCerts(certs)
	Expect(err).NotTo(HaveOccurred())
	Expect(pod.Containers).To(HaveLen(1))
	Expect(pod.Containers[0].Args).To(ConsistOf("--leader-elect", "--diagnostics-address=:8443", "--health-probe-bind-address=:9440", "--webhook-port=9443"))
	s.manager, err = framework.StartManager(ctx, framework.ManagerOptions{
		Binary: binary, Kubeconfig: kubeconfig, LeaderElect: true, WebhookPort: port, WebhookCertDir: certs,
		Args: append(s.flags(ctx, pod.Containers[0].EnvFrom), "--leader-elect-namespace="+namespace),
	})
	Expect(err).NotTo(HaveOccurred())
	hooks := &admissionv1.ValidatingWebhookConfiguration{}
	Expect(s.Get(ctx, client.ObjectKey{Name: "butler-ipam-validating-webhook-configuration"}, hooks)).To(Succeed())
	for i := range hooks.Webhooks {
		hooks.Webhooks[i].ClientConfig = admissionv1.WebhookClientConfig{
			URL: ptr.To(fmt.Sprintf("https://127.0.0.1:%d%s", port, webhookPath(hooks.Webhooks[i].ClientConfig))), CABundle: ca,
		}
	}
	Expect(s.Update(ctx, hooks)).To(Succeed())
	// The API server takes a moment until it calls the webhooks; then the manager refuses the pool.
	Eventually(func() error {
		return s.Create(ctx, framework.MakePool("asked").Namespace("default").Addresses("10.21.99.1").Reserved("10.21.98.1").Obj(), client.DryRunAll)
	}).WithTimeout(framework.LongTimeout).Should(Satisfy(apierrors.IsInvalid))
}

// webhookPath returns the path of a webhook, from the release or from the manager that ran before.
func webhookPath(c admissionv1.WebhookClientConfig) string {
	GinkgoHelper()
	if c.Service != nil {
		return *c.Service.Path
	}
	u, err := url.Parse(*c.URL)
	Expect(err).NotTo(HaveOccurred())
	return u.Path
}

// restart starts the site's manager again if it has ended, as the kubelet does: a manager that loses the election, on
// a busy machine, ends.
func (s *site) restart(ctx context.Context) {
	GinkgoHelper()
	select {
	case <-s.manager.Done():
		By("a manager has ended, and is started again")
		s.run(ctx)
	default:
	}
}

// grants returns how many addresses the site's manager has granted to Machines. A block that moves is granted again
// by its record, and is not counted.
func (s *site) grants(ctx context.Context) (sum int) {
	GinkgoHelper()
	counts, err := s.manager.ReadCounter(ctx, "butler_ipam_grants_total")
	Expect(err).NotTo(HaveOccurred())
	for pool, n := range counts {
		if !strings.Contains(pool, `"services"`) && !strings.Contains(pool, `"datacentre"`) {
			sum += n
		}
	}
	return sum
}
