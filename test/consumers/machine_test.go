package consumers

import (
	"context"
	"errors"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// machineFinalizer is the finalizer that a consumer has on its own kind until the machine is gone.
const machineFinalizer = "example.com/machine"

// errUnbound means that a consumer would requeue and retry later.
var errUnbound = errors.New("an address is not there yet")

// machine is one machine of a consumer.
type machine struct {
	*consumer
	namespace, name string
	clusterLabel    map[string]string
	pools           []ipamv1.IPPoolReference
	owner           *unstructured.Unstructured
}

// newMachine creates the owner of the claims of a machine, with an address from each of the given NetworkPools. It
// names no Cluster.
func (c *consumer) newMachine(ctx context.Context, namespace, name string, pools ...string) *machine {
	GinkgoHelper()
	return c.newMachineOf(ctx, nil, namespace, name, pools...)
}

// newMachineOf is newMachine with a label that names a Cluster, which may be empty.
func (c *consumer) newMachineOf(ctx context.Context, clusterLabel map[string]string, namespace, name string, pools ...string) *machine {
	GinkgoHelper()
	m := &machine{consumer: c, namespace: namespace, name: name, clusterLabel: clusterLabel}
	for _, pool := range pools {
		m.pools = append(m.pools, ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: pool})
	}
	if !c.owner.Empty() {
		m.owner = object(c.owner, namespace, name)
		m.owner.SetLabels(clusterLabel)
		m.owner.SetFinalizers([]string{machineFinalizer})
		// A machine of this name may still be in deletion.
		Eventually(func() error { return k8s.Create(ctx, m.owner) }).Should(Succeed())
	}
	return m
}

func clusterLabel(name string) map[string]string {
	return map[string]string{clusterv1.ClusterNameLabel: name}
}

// object returns an empty object of a kind without a Go type, or of a version that is not the storage version.
func object(kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// claim returns an object with the name of the machine's n-th claim; it is not read yet.
func (m *machine) claim(version schema.GroupVersion, n int) *unstructured.Unstructured {
	return object(version.WithKind("IPAddressClaim"), m.namespace, m.claimName(m.name, n, m.pools[n].Name))
}

// reconcile does what the consumer does in each reconcile of the machine: it writes the claims, and reads the
// addresses when all claims are bound.
func (m *machine) reconcile(ctx context.Context) ([]answer, error) {
	for n, pool := range m.pools {
		claim := m.claim(m.writes, n)
		if err := m.write(ctx, claim, func() { m.set(claim, m, pool) }); err != nil {
			return nil, err
		}
	}
	var answers []answer
	for n := range m.pools {
		a, err := m.read(ctx, n)
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// read reads the claim n and its address.
func (m *machine) read(ctx context.Context, n int) (answer, error) {
	claim := m.claim(m.reads, n)
	if err := k8s.Get(ctx, keyOf(claim), claim); err != nil {
		return answer{}, err
	}
	if claim.GetDeletionTimestamp() != nil {
		return answer{}, fmt.Errorf("claim %s is being deleted: %w", claim.GetName(), errUnbound)
	}
	name, _, _ := unstructured.NestedString(claim.Object, "status", "addressRef", "name")
	if name == "" {
		return answer{}, fmt.Errorf("claim %s is %+v: %w", claim.GetName(), readyOf(claim), errUnbound)
	}
	if m.usesName {
		name = claim.GetName()
	}
	address := object(m.reads.WithKind("IPAddress"), m.namespace, name)
	err := k8s.Get(ctx, keyOf(address), address)
	if apierrors.IsNotFound(err) {
		// For CAPV this is an error, for CAPMOX a conflict that requires a manual fix (C32). The claim may have been
		// released between the two reads.
		again := m.claim(m.reads, n)
		if k8s.Get(ctx, keyOf(again), again) == nil && again.GetUID() == claim.GetUID() && again.GetDeletionTimestamp() == nil {
			return answer{}, StopTrying("claim " + claim.GetName() + " names an IPAddress that does not exist")
		}
	}
	if err != nil {
		return answer{}, err
	}
	return newAnswer(claim, address)
}

// waitUntilBound reconciles until the machine has its addresses, and checks that they are valid for the consumer.
func (m *machine) waitUntilBound(ctx context.Context) []answer {
	GinkgoHelper()
	var answers []answer
	Eventually(func() (err error) { answers, err = m.reconcile(ctx); return err }).Should(Succeed())
	Expect(m.complaints(answers)).To(BeEmpty())
	return answers
}

// destroy deletes the machine, as the consumer does when the machine is gone: it removes its finalizers first from
// the claims, then from the machine.
func (m *machine) destroy(ctx context.Context, opts ...client.DeleteOption) {
	GinkgoHelper()
	if m.owner != nil {
		Expect(k8s.Delete(ctx, m.owner, opts...)).To(Succeed())
	}
	for n := range m.pools {
		claim := m.claim(m.writes, n)
		if m.finalizer != "" {
			update(ctx, claim, func(claim *unstructured.Unstructured) { controllerutil.RemoveFinalizer(claim, m.finalizer) })
		}
		if m.deletes {
			Expect(client.IgnoreNotFound(k8s.Delete(ctx, claim))).To(Succeed())
		}
	}
	if m.owner != nil {
		update(ctx, m.owner, func(owner *unstructured.Unstructured) { controllerutil.RemoveFinalizer(owner, machineFinalizer) })
	}
}

// gone waits until the machine and its claims do not exist any more.
func (m *machine) gone(ctx context.Context) {
	GinkgoHelper()
	if m.owner != nil {
		expectGone(ctx, m.owner)
	}
	for n := range m.pools {
		expectGone(ctx, m.claim(m.reads, n))
	}
}

// claimFinalizers returns the finalizers that the consumer puts on its claims.
func (m *machine) claimFinalizers() []string {
	if m.finalizer == "" {
		return nil
	}
	return []string{m.finalizer}
}

// update reads and replaces an object, if it exists, and retries after a conflict.
func update[O client.Object](ctx context.Context, obj O, change func(O)) {
	GinkgoHelper()
	Eventually(func() error {
		if err := k8s.Get(ctx, keyOf(obj), obj); err != nil {
			return client.IgnoreNotFound(err)
		}
		change(obj)
		return client.IgnoreNotFound(k8s.Update(ctx, obj))
	}).Should(Succeed())
}

// expectGone waits until the object is gone, or another object with another UID has its name, if the UID is known.
func expectGone(ctx context.Context, obj *unstructured.Unstructured) {
	GinkgoHelper()
	uid := obj.GetUID()
	Eventually(func(g Gomega) {
		now := object(obj.GroupVersionKind(), obj.GetNamespace(), obj.GetName())
		err := k8s.Get(ctx, keyOf(now), now)
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		g.Expect(err != nil || (uid != "" && now.GetUID() != uid)).To(BeTrue(), "%s %s exists, finalizers %v",
			obj.GetKind(), obj.GetName(), now.GetFinalizers())
	}).Should(Succeed())
}
