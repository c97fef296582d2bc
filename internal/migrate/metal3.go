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

// metal3Pool is an IPPool of Metal3's IPAM. CAPM3 looks for the IPClaim and the IPAddress of a machine as long as the
// machine lives, so these stay, without the finalizers of Metal3's IPAM; the pool goes before there is ours, as Metal3's
// IPAM heeds no pause of a pool without a Cluster, and takes part in claims on any pool of the same name.
type metal3Pool struct{ Source }

func (metal3Pool) words() words {
	return words{
		provider: "Metal3's IPAM",
		outside:  "replace its machine by one with another address first",
		becomes:  "given an IPAddressClaim of the same name, with the same address",
		imported: "IPClaims stay until their machines go. Before you unpause the Clusters, make a Metal3DataTemplate and a Metal3MachineTemplate that name the new pool,\n" +
			"and refer to them. New claims are served after 75 s. Metal3's IPAM may run again now, if other pools need it.\n" +
			"When all is well: import --forget.",
		back: "Start Metal3's IPAM with its webhooks, then unpause the Clusters.",
	}
}

func (o metal3Pool) pool(ctx context.Context, from client.Reader, j *journal) (*oldPool, error) {
	is := o.unread()
	err := from.Get(ctx, o.key(), is)
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("there is no kind %s here: the CRDs of Metal3's IPAM are not installed", o.Kind)
	case apierrors.IsNotFound(err) && j != nil && j.Metal3 != nil:
		is = j.Metal3
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%s of Metal3 does not exist", o)
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", o, err)
	}
	about := &metav1.PartialObjectMetadata{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(is.Object, about); err != nil {
		return nil, fmt.Errorf("reading %s: %w", o, err)
	}
	out := &oldPool{ObjectMeta: about.ObjectMeta, metal3: is}
	out.spec, out.notes, out.problems = metal3.Translate(is)
	return out, nil
}

// unread is the pool with whatever fields it has: it is made again of them.
func (o metal3Pool) unread() *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	out.SetGroupVersionKind(m3ipamv1.GroupVersion.WithKind(o.Kind))
	return out
}

func (o metal3Pool) key() client.ObjectKey {
	return client.ObjectKey{Namespace: o.Namespace, Name: o.Name}
}

func (o metal3Pool) surroundings(ctx context.Context, from client.Reader, in *found) (err error) {
	if in.running, err = dropin.Running(ctx, from, dropin.Metal3); err != nil {
		return err
	}
	validating, mutating := &admissionv1.ValidatingWebhookConfigurationList{}, &admissionv1.MutatingWebhookConfigurationList{}
	for _, list := range []client.ObjectList{validating, mutating} {
		if err := from.List(ctx, list); err != nil {
			return fmt.Errorf("looking for the webhooks of Metal3's IPAM: %w", err)
		}
	}
	for _, c := range validating.Items {
		if slices.ContainsFunc(c.Webhooks, func(w admissionv1.ValidatingWebhook) bool { return insists(w.FailurePolicy, w.Rules) }) {
			in.asked = append(in.asked, "validatingwebhookconfiguration "+c.Name)
		}
	}
	for _, c := range mutating.Items {
		if slices.ContainsFunc(c.Webhooks, func(w admissionv1.MutatingWebhook) bool { return insists(w.FailurePolicy, w.Rules) }) {
			in.asked = append(in.asked, "mutatingwebhookconfiguration "+c.Name)
		}
	}
	return nil
}

// insists reports whether a webhook that does not answer keeps objects of Metal3's IPAM from being written.
func insists(policy *admissionv1.FailurePolicyType, rules []admissionv1.RuleWithOperations) bool {
	return ptr.Deref(policy, admissionv1.Fail) == admissionv1.Fail && slices.ContainsFunc(rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.Contains(r.APIGroups, m3ipamv1.GroupVersion.Group)
	})
}

func (o metal3Pool) unserved(in *found) []Problem {
	out := stop(o, in.running)
	for _, who := range in.asked {
		out = append(out, Problem{
			"Metal3's IPAM is asked about each write of its objects, and does not answer while it is stopped: " + who,
			"kubectl get " + who + " -o yaml | sed 's/failurePolicy: Fail/failurePolicy: Ignore/' | kubectl replace -f -   (and the other way round when Metal3's IPAM runs again)",
		})
	}
	return out
}

// leave takes the pool away: from here on nobody can give an address of it, whoever starts Metal3's IPAM.
func (o metal3Pool) leave(ctx context.Context, m *Move, j *journal) error {
	err := retry.RetryOnConflict(patience, func() error {
		pool := o.unread()
		if err := m.Client.Get(ctx, o.key(), pool); err != nil {
			return client.IgnoreNotFound(err)
		}
		if pool.GetUID() != j.Metal3.GetUID() {
			return fmt.Errorf("it was created anew since the import began: delete it")
		}
		if err := remove(ctx, m.Client, pool); err != nil {
			return err
		}
		m.Say("%s deleted: the journal has it", o)
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting %s: %w", o, err)
	}
	return nil
}

// comeBack makes the pool again, and the owner of its IPAddresses.
func (o metal3Pool) comeBack(ctx context.Context, m *Move, j *journal) error {
	pool := o.unread()
	err := retry.RetryOnConflict(patience, func() error {
		err := m.Client.Get(ctx, o.key(), pool)
		if err == nil {
			return likeBefore(ctx, m.Client, pool, pool.GetOwnerReferences(), j.Metal3.GetFinalizers())
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		pool = o.anew(j.Metal3)
		if err := m.Client.Create(ctx, pool); err != nil {
			return err
		}
		m.Say("%s created again", o)
		return nil
	})
	if err != nil {
		return fmt.Errorf("creating %s again: %w", o, err)
	}
	for _, e := range j.Entries {
		err := retry.RetryOnConflict(patience, func() error {
			_, address, err := e.Metal3.get(ctx, m.Client)
			if err != nil || address == nil {
				return err
			}
			want := slices.Clone(e.Metal3.Address.OwnerReferences)
			for i := range want {
				if want[i].UID == j.Metal3.GetUID() {
					want[i].UID = pool.GetUID()
				}
			}
			return likeBefore(ctx, m.Client, address, want, nil)
		})
		if err != nil {
			return fmt.Errorf("making %s the owner of its IPAddresses again: %w", o, err)
		}
	}
	return nil
}

// anew is what of the pool can be created again.
func (o metal3Pool) anew(was *unstructured.Unstructured) *unstructured.Unstructured {
	out := o.unread()
	out.Object["spec"] = runtime.DeepCopyJSONValue(was.Object["spec"])
	out.SetNamespace(o.Namespace)
	out.SetName(o.Name)
	out.SetLabels(was.GetLabels())
	out.SetAnnotations(was.GetAnnotations())
	out.SetOwnerReferences(was.GetOwnerReferences())
	out.SetFinalizers(was.GetFinalizers())
	return out
}

func (o metal3Pool) late(ctx context.Context, from client.Reader, j *journal) (out users, err error) {
	addresses := &m3ipamv1.IPAddressList{}
	if err := from.List(ctx, addresses, client.InNamespace(o.Namespace)); err != nil {
		return out, fmt.Errorf("listing the IPAddresses of Metal3: %w", err)
	}
	for i := range addresses.Items {
		a := &addresses.Items[i]
		known := slices.ContainsFunc(j.Entries, func(e Entry) bool { return e.Metal3.Address.UID == a.UID })
		if a.Spec.Pool.Name == o.Name && !known {
			out.addresses = append(out.addresses, *o.address(a.Name, a))
		}
	}
	return out, nil
}
