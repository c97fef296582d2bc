package migrate

import (
	"context"
	"fmt"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/dropin"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metal3"
)

// metal3Pool is an IPPool of Metal3's IPAM. CAPM3 reads the IPClaim and the IPAddress of a machine as long as the
// machine lives, so these stay, without the finalizers of Metal3's IPAM. The pool is deleted before ours is created, as
// Metal3's IPAM ignores a pause of a pool without a Cluster, and serves the claims of any pool of the same name.
type metal3Pool struct{ Source }

func (metal3Pool) texts() providerTexts {
	return providerTexts{
		providerName:  "Metal3's IPAM",
		outsideAdvice: "replace its machine by one with another address first",
		claimsOutcome: "given an IPAddressClaim of the same name, with the same address",
		afterImport: "IPClaims stay until their machines go. Before you unpause the Clusters, make a Metal3DataTemplate and a Metal3MachineTemplate that name the new pool,\n" +
			"and refer to them. New claims are served after 75 s. Metal3's IPAM may run again now, if other pools need it.\n" +
			"When all is well: import --forget.",
		afterRollback: "Start Metal3's IPAM with its webhooks, then unpause the Clusters.",
	}
}

func (mp metal3Pool) readPool(ctx context.Context, from client.Reader, j *journal) (*sourcePool, error) {
	current := mp.newUnstructured()
	err := from.Get(ctx, mp.key(), current)
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("there is no kind %s here: the CRDs of Metal3's IPAM are not installed", mp.Kind)
	case apierrors.IsNotFound(err) && j != nil && j.Metal3 != nil:
		current = j.Metal3
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s of Metal3 does not exist", mp)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", mp, err)
	}
	about := &metav1.PartialObjectMetadata{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(current.Object, about); err != nil {
		return nil, fmt.Errorf("reading %s: %w", mp, err)
	}
	out := &sourcePool{ObjectMeta: about.ObjectMeta, metal3Object: current}
	out.spec, out.notes, out.problems = metal3.ToNetworkPoolSpec(current)
	return out, nil
}

// newUnstructured returns an empty object of the pool. It is unstructured, so that unknown fields are kept: the pool is
// restored from it.
func (mp metal3Pool) newUnstructured() *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(m3ipamv1.GroupVersion.WithKind(mp.Kind))
	return out
}

func (mp metal3Pool) key() client.ObjectKey {
	return client.ObjectKey{Namespace: mp.Namespace, Name: mp.Name}
}

func (mp metal3Pool) readEnvironment(ctx context.Context, from client.Reader, in *planInput) (err error) {
	if in.runningWorkloads, err = dropin.ListRunning(ctx, from, dropin.ProviderMetal3); err != nil {
		return err
	}
	validating, mutating := &admissionv1.ValidatingWebhookConfigurationList{}, &admissionv1.MutatingWebhookConfigurationList{}
	for _, list := range []client.ObjectList{validating, mutating} {
		if err := from.List(ctx, list); err != nil {
			return fmt.Errorf("looking for the webhooks of Metal3's IPAM: %w", err)
		}
	}
	for _, c := range validating.Items {
		if slices.ContainsFunc(c.Webhooks, func(w admissionv1.ValidatingWebhook) bool { return blocksMetal3Writes(w.FailurePolicy, w.Rules) }) {
			in.blockingWebhooks = append(in.blockingWebhooks, "validatingwebhookconfiguration "+c.Name)
		}
	}
	for _, c := range mutating.Items {
		if slices.ContainsFunc(c.Webhooks, func(w admissionv1.MutatingWebhook) bool { return blocksMetal3Writes(w.FailurePolicy, w.Rules) }) {
			in.blockingWebhooks = append(in.blockingWebhooks, "mutatingwebhookconfiguration "+c.Name)
		}
	}
	return nil
}

// blocksMetal3Writes reports whether a webhook that does not answer blocks writes of objects of Metal3's IPAM.
func blocksMetal3Writes(policy *admissionv1.FailurePolicyType, rules []admissionv1.RuleWithOperations) bool {
	return ptr.Deref(policy, admissionv1.Fail) == admissionv1.Fail && slices.ContainsFunc(rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.Contains(r.APIGroups, m3ipamv1.GroupVersion.Group)
	})
}

func (mp metal3Pool) findServingProblems(in *planInput) []Problem {
	out := describeRunning(mp, in.runningWorkloads)
	for _, webhook := range in.blockingWebhooks {
		out = append(out, Problem{
			"Metal3's IPAM is asked about each write of its objects, and does not answer while it is stopped: " + webhook,
			"kubectl get " + webhook + " -o yaml | sed 's/failurePolicy: Fail/failurePolicy: Ignore/' | kubectl replace -f -   (and the other way round when Metal3's IPAM runs again)",
		})
	}
	return out
}

// retirePool deletes the pool: from here on no address of it can be given, even if Metal3's IPAM is started.
func (mp metal3Pool) retirePool(ctx context.Context, m *Import, j *journal) error {
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		pool := mp.newUnstructured()
		if err := m.Client.Get(ctx, mp.key(), pool); err != nil {
			return client.IgnoreNotFound(err)
		}
		if pool.GetUID() != j.Metal3.GetUID() {
			return fmt.Errorf("it was recreated since the import began: delete it")
		}
		if err := deleteWithFinalizers(ctx, m.Client, pool); err != nil {
			return err
		}
		m.Reportf("%s deleted: the journal has it", mp)
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting %s: %w", mp, err)
	}
	return nil
}

// restorePool creates the pool again, and makes it the owner of its IPAddresses.
func (mp metal3Pool) restorePool(ctx context.Context, m *Import, j *journal) error {
	pool := mp.newUnstructured()
	err := retry.RetryOnConflict(conflictBackoff, func() error {
		err := m.Client.Get(ctx, mp.key(), pool)
		if err == nil {
			return ensureOwnersAndFinalizers(ctx, m.Client, pool, pool.GetOwnerReferences(), j.Metal3.GetFinalizers())
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		pool = mp.recreatablePool(j.Metal3)
		if err := m.Client.Create(ctx, pool); err != nil {
			return err
		}
		m.Reportf("%s created again", mp)
		return nil
	})
	if err != nil {
		return fmt.Errorf("creating %s again: %w", mp, err)
	}
	for _, e := range j.Entries {
		err := retry.RetryOnConflict(conflictBackoff, func() error {
			_, address, err := e.Metal3.getLive(ctx, m.Client)
			if err != nil || address == nil {
				return err
			}
			want := slices.Clone(e.Metal3.Address.OwnerReferences)
			for i := range want {
				if want[i].UID == j.Metal3.GetUID() {
					want[i].UID = pool.GetUID()
				}
			}
			return ensureOwnersAndFinalizers(ctx, m.Client, address, want, nil)
		})
		if err != nil {
			return fmt.Errorf("making %s the owner of its IPAddresses again: %w", mp, err)
		}
	}
	return nil
}

// recreatablePool returns the part of the pool with which it can be created again.
func (mp metal3Pool) recreatablePool(old *unstructured.Unstructured) *unstructured.Unstructured {
	out := mp.newUnstructured()
	out.Object["spec"] = runtime.DeepCopyJSONValue(old.Object["spec"])
	out.SetNamespace(mp.Namespace)
	out.SetName(mp.Name)
	out.SetLabels(old.GetLabels())
	out.SetAnnotations(old.GetAnnotations())
	out.SetOwnerReferences(old.GetOwnerReferences())
	out.SetFinalizers(old.GetFinalizers())
	return out
}

func (mp metal3Pool) readLateUsers(ctx context.Context, from client.Reader, j *journal) (out poolUsers, err error) {
	addresses := &m3ipamv1.IPAddressList{}
	if err := from.List(ctx, addresses, client.InNamespace(mp.Namespace)); err != nil {
		return out, fmt.Errorf("listing the IPAddresses of Metal3: %w", err)
	}
	for i := range addresses.Items {
		a := &addresses.Items[i]
		known := slices.ContainsFunc(j.Entries, func(e Entry) bool { return e.Metal3.Address.UID == a.UID })
		if a.Spec.Pool.Name == mp.Name && !known {
			out.addresses = append(out.addresses, *mp.toAddress(a.Name, a))
		}
	}
	return out, nil
}
