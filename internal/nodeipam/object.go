package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// errClosing says that an object is being deleted, is gone, or is another one of that name: nothing is given of it.
var errClosing = errors.New("nothing more is given of it")

// Object is an object that CIDRs are given from, as a watch shows it.
type Object struct {
	podcidr.Ref
	// Range is what it says; nil where that is not valid, and Invalid says why.
	Range   *podcidr.Range
	Invalid field.ErrorList
	// Closing: nothing more is given of it, as it is being deleted, or no longer meant for these Nodes. Held: it says that
	// it is in use here; by our finalizer, or in a fleet by an entry for the Cluster.
	Closing, Held bool
	// Sources say where the blocks of a family come from; nil: the family has no pool.
	Sources [2]*Source
	// Mark is that of the entry: it changes whenever the object is opened.
	Mark string
}

// RefOf names a ClusterCIDR.
func RefOf(c *v1alpha1.ClusterCIDR) podcidr.Ref {
	return podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: c.Name, UID: c.UID}
}

// ObjectOf is what a ClusterCIDR says.
func ObjectOf(c *v1alpha1.ClusterCIDR) Object {
	out := Object{
		Ref:     RefOf(c),
		Closing: c.DeletionTimestamp != nil, Held: controllerutil.ContainsFinalizer(c, v1alpha1.ClusterCIDRFinalizer),
	}
	spec := podcidr.Spec{Selector: c.Spec.NodeSelector}
	bits := int(c.Spec.PerNodeHostBits)
	spec.HostBits = [2]int{bits, int(ptr.Deref(c.Spec.PerNodeHostBitsIPv6, c.Spec.PerNodeHostBits))}
	for f, text := range []string{c.Spec.IPv4, c.Spec.IPv6} {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			out.Invalid = append(out.Invalid, field.Invalid(field.NewPath("spec", strings.ToLower(podcidr.Family(f).String())), text, "is no CIDR"))
			continue
		}
		spec.CIDRs[f] = append(spec.CIDRs[f], p)
	}
	out.Invalid = append(out.Invalid, out.addSources(&spec, c.Spec.IPv4Pool, c.Spec.IPv6Pool)...)
	out.Invalid = append(out.Invalid, checkClusters(c.Spec.ClusterSelector)...)
	if len(out.Invalid) == 0 {
		out.Range, out.Invalid = podcidr.Compile(out.Ref, spec)
	}
	if out.Range != nil {
		out.Range.Closing = out.Closing
	}
	return out
}

// Objects are the objects that CIDRs are given from, as the API server has them.
type Objects interface {
	// Protect says of an object that it is in use, before anything is given of it. errClosing: it is not to be given of.
	Protect(ctx context.Context, ref podcidr.Ref) error
	// Release says of an object which was closed that it is not in use any more, unless its mark is another one by now:
	// then it was opened since.
	Release(ctx context.Context, ref podcidr.Ref, mark string) error
	// AnyProtected reports whether one is said to be in use: then there was a manager before.
	AnyProtected(ctx context.Context) (bool, error)
}

// ClusterCIDRs are those of the cluster of the manager.
type ClusterCIDRs struct {
	Client client.Client
	// Live reads what the API server has.
	Live client.Reader
}

func (c ClusterCIDRs) read(ctx context.Context, ref podcidr.Ref) (*v1alpha1.ClusterCIDR, error) {
	out := &v1alpha1.ClusterCIDR{}
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	err := c.Live.Get(ctx, client.ObjectKey{Name: ref.Name}, out)
	if apierrors.IsNotFound(err) || (err == nil && out.UID != ref.UID) {
		return nil, errClosing
	}
	return out, err
}

// Protect implements Objects: it puts our finalizer on.
func (c ClusterCIDRs) Protect(ctx context.Context, ref podcidr.Ref) error {
	live, err := c.read(ctx, ref)
	switch {
	case err != nil:
		return fmt.Errorf("reading %s before CIDRs are given from it: %w", ref, err)
	case live.DeletionTimestamp != nil:
		return errClosing
	case controllerutil.ContainsFinalizer(live, v1alpha1.ClusterCIDRFinalizer):
		return nil
	}
	return c.patch(ctx, live, func(o *v1alpha1.ClusterCIDR) { controllerutil.AddFinalizer(o, v1alpha1.ClusterCIDRFinalizer) })
}

// Release implements Objects: it takes our finalizer off an object that is being deleted, and that no Cluster has an entry
// in. Nobody opens it again.
func (c ClusterCIDRs) Release(ctx context.Context, ref podcidr.Ref, _ string) error {
	live, err := c.read(ctx, ref)
	switch {
	case errors.Is(err, errClosing):
		return nil
	case err != nil:
		return fmt.Errorf("reading %s before it goes: %w", ref, err)
	case live.DeletionTimestamp == nil || len(live.Status.Clusters) > 0 || !controllerutil.ContainsFinalizer(live, v1alpha1.ClusterCIDRFinalizer):
		return nil
	}
	return c.patch(ctx, live, func(o *v1alpha1.ClusterCIDR) { controllerutil.RemoveFinalizer(o, v1alpha1.ClusterCIDRFinalizer) })
}

// patch writes the finalizers of a ClusterCIDR as it was read, and of no later version.
func (c ClusterCIDRs) patch(ctx context.Context, live *v1alpha1.ClusterCIDR, change func(*v1alpha1.ClusterCIDR)) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	next := live.DeepCopy()
	change(next)
	err := c.Client.Patch(ctx, next, client.MergeFromWithOptions(live, client.MergeFromWithOptimisticLock{}))
	if err != nil && (!apierrors.IsNotFound(err) || live.DeletionTimestamp == nil) {
		return fmt.Errorf("writing the finalizer of ClusterCIDR %s: %w", live.Name, err)
	}
	return nil
}

// AnyProtected implements Objects.
func (c ClusterCIDRs) AnyProtected(ctx context.Context) (bool, error) {
	return c.any(ctx, func(o *v1alpha1.ClusterCIDR) bool {
		return IsLocal(o) && controllerutil.ContainsFinalizer(o, v1alpha1.ClusterCIDRFinalizer)
	})
}

func (c ClusterCIDRs) any(ctx context.Context, is func(*v1alpha1.ClusterCIDR) bool) (bool, error) {
	var all v1alpha1.ClusterCIDRList
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := c.Live.List(ctx, &all); err != nil {
		return false, fmt.Errorf("listing ClusterCIDRs: %w", err)
	}
	for i := range all.Items {
		if is(&all.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}
