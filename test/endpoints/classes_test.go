package endpoints

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// versions are the API versions of the kinds of each provider, as docs/endpoints.md names them.
var versions = map[string]string{"VSphere": "v1beta2", "Metal3": "v1beta2", "Proxmox": "v1alpha2"}

const infrastructure = "infrastructure.cluster.x-k8s.io"

// documented returns the manifests of docs/endpoints.md, and the machine templates of this test, by kind.
func documented() map[string]*unstructured.Unstructured {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "endpoints.md"))
	Expect(err).NotTo(HaveOccurred())
	machines, err := os.ReadFile("testdata/machines.yaml")
	Expect(err).NotTo(HaveOccurred())
	out := map[string]*unstructured.Unstructured{}
	blocks := [][]byte{machines}
	for _, m := range regexp.MustCompile("(?s)\n```yaml\n(.*?)\n```\n").FindAllSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	for _, block := range blocks {
		docs, err := framework.ParseManifests(block)
		Expect(err).NotTo(HaveOccurred())
		for _, doc := range docs {
			out[doc.GetKind()] = doc
		}
	}
	return out
}

// newClass creates the ClusterClass of the page, and its templates, for a provider. The functions in change may edit
// it first.
func newClass(ctx context.Context, ns, provider string, change ...func(*clusterv1.ClusterClass)) {
	GinkgoHelper()
	docs := documented()
	class := &clusterv1.ClusterClass{}
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(docs["ClusterClass"].Object, class, true)).To(Succeed())
	group := infrastructure + "/" + versions[provider]
	class.Namespace = ns
	class.Spec.Infrastructure.TemplateRef.APIVersion, class.Spec.Infrastructure.TemplateRef.Kind = group, provider+"ClusterTemplate"
	class.Spec.ControlPlane.MachineInfrastructure.TemplateRef.APIVersion, class.Spec.ControlPlane.MachineInfrastructure.TemplateRef.Kind = group, provider+"MachineTemplate"
	for _, do := range change {
		do(class)
	}
	for _, kind := range []string{provider + "ClusterTemplate", provider + "MachineTemplate", "KubeadmControlPlaneTemplate"} {
		Expect(docs).To(HaveKey(kind))
		docs[kind].SetNamespace(ns)
		create(ctx, docs[kind])
	}
	create(ctx, class)
}

// newCluster returns the Cluster of the page under the given name; if pool is not empty, its variable names that
// pool.
func newCluster(ns, name, pool string) *clusterv1.Cluster {
	GinkgoHelper()
	cluster := &clusterv1.Cluster{}
	Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(documented()["Cluster"].Object, cluster, true)).To(Succeed())
	cluster.Namespace, cluster.Name = ns, name
	if pool == "" {
		cluster.Spec.Topology.Variables = nil
	} else {
		cluster.Spec.Topology.Variables[0].Value.Raw = []byte(`{"name": "` + pool + `"}`)
	}
	return cluster
}

func read(ctx context.Context, obj client.Object) {
	GinkgoHelper()
	Expect(k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj)).To(Succeed())
}

// modify changes an object with an optimistic lock, and retries after conflicts.
func modify[T client.Object](ctx context.Context, obj T, change func(T)) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj)).To(Succeed())
		before := obj.DeepCopyObject().(client.Object)
		change(obj)
		g.Expect(k8s.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))).To(Succeed())
	}).Should(Succeed())
}

// wake makes Cluster API reconcile a Cluster at once, as docs/endpoints.md describes.
func wake(ctx context.Context, cluster *clusterv1.Cluster) {
	GinkgoHelper()
	modify(ctx, cluster, func(c *clusterv1.Cluster) {
		c.Annotations = maps.Clone(c.Annotations)
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, "look", c.ResourceVersion)
	})
}

// infrastructureOf waits for the object that Cluster API creates from the template of the infrastructure, and returns
// it.
func infrastructureOf(ctx context.Context, cluster *clusterv1.Cluster) *unstructured.Unstructured {
	GinkgoHelper()
	out := &unstructured.Unstructured{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
		g.Expect(cluster.Spec.InfrastructureRef.IsDefined()).To(BeTrue(), "%v", topologyOf(cluster).Message)
		setReferencedObject(out, cluster, cluster.Spec.InfrastructureRef)
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(out), out)).To(Succeed())
	}).Should(Succeed())
	return out
}

// setReferencedObject sets the kind, namespace and name of an object from a reference of a Cluster.
func setReferencedObject(out *unstructured.Unstructured, cluster *clusterv1.Cluster, ref clusterv1.ContractVersionedObjectReference) {
	version := "v1beta2"
	if ref.APIGroup == infrastructure {
		version = versions[strings.TrimSuffix(ref.Kind, "Cluster")]
	}
	out.SetAPIVersion(ref.APIGroup + "/" + version)
	out.SetKind(ref.Kind)
	out.SetNamespace(cluster.Namespace)
	out.SetName(ref.Name)
}

func hostOf(infra *unstructured.Unstructured) string {
	host, _, _ := unstructured.NestedString(infra.Object, "spec", "controlPlaneEndpoint", "host")
	return host
}

// provision marks the infrastructure of a Cluster as provisioned, as its provider does, and waits until the Cluster
// has its endpoint.
func provision(ctx context.Context, cluster *clusterv1.Cluster) {
	GinkgoHelper()
	infra := infrastructureOf(ctx, cluster)
	before := infra.DeepCopy()
	Expect(unstructured.SetNestedField(infra.Object, true, "status", "initialization", "provisioned")).To(Succeed())
	Expect(k8s.Status().Patch(ctx, infra, client.MergeFrom(before))).To(Succeed())
	Eventually(func() string {
		read(ctx, cluster)
		return cluster.Spec.ControlPlaneEndpoint.Host
	}).Should(Equal(hostOf(infra)))
}

func topologyOf(cluster *clusterv1.Cluster) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(cluster.Status.Conditions, clusterv1.ClusterTopologyReconciledCondition), metav1.Condition{})
}

// expectTopologyMessage waits until the topology condition of a Cluster is False, with the given text in its message.
func expectTopologyMessage(ctx context.Context, cluster *clusterv1.Cluster, message string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		read(ctx, cluster)
		g.Expect(topologyOf(cluster).Status).To(Equal(metav1.ConditionFalse))
		g.Expect(topologyOf(cluster).Message).To(ContainSubstring(message))
	}).Should(Succeed())
}

// expectReconciled waits until Cluster API reports that the Cluster matches its class.
func expectReconciled(ctx context.Context, cluster *clusterv1.Cluster) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		read(ctx, cluster)
		g.Expect(topologyOf(cluster).Status).To(Equal(metav1.ConditionTrue), topologyOf(cluster).Message)
	}).WithTimeout(framework.LongTimeout).Should(Succeed()) // Cluster API retries in its own time
}

func claimOf(cluster *clusterv1.Cluster) *ipamv1.IPAddressClaim {
	return &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name + "-control-plane"}}
}

// addressOf waits for the address of a claim, and returns it.
func addressOf(ctx context.Context, claim *ipamv1.IPAddressClaim) string {
	GinkgoHelper()
	address := &ipamv1.IPAddress{}
	Eventually(func(g Gomega) {
		g.Expect(k8s.Get(ctx, client.ObjectKeyFromObject(claim), claim)).To(Succeed())
		g.Expect(claim.Status.AddressRef.Name).NotTo(BeEmpty())
		g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: claim.Status.AddressRef.Name}, address)).To(Succeed())
	}).Should(Succeed())
	return address.Spec.Address
}

// pool returns a builder of a pool in a network of its own, as other specs use the same addresses.
func pool(ns, name string) *framework.PoolBuilder {
	return framework.MakePool(name).Namespace(ns).Network(ns)
}
