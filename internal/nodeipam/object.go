package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

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
	return objectOf(RefOf(c), c, v1alpha1.ClusterCIDRFinalizer, &c.Spec)
}

// objectOf is what an object of some kind says, of which a finalizer says that it is in use.
func objectOf(ref podcidr.Ref, o client.Object, finalizer string, said *v1alpha1.ClusterCIDRSpec) Object {
	out := Object{Ref: ref, Closing: o.GetDeletionTimestamp() != nil, Held: controllerutil.ContainsFinalizer(o, finalizer)}
	spec := podcidr.Spec{Selector: said.NodeSelector}
	spec.HostBits = [2]int{int(said.PerNodeHostBits), int(ptr.Deref(said.PerNodeHostBitsIPv6, said.PerNodeHostBits))}
	for f, text := range []string{said.IPv4, said.IPv6} {
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
	out.Invalid = append(out.Invalid, out.addSources(&spec, said.IPv4Pool, said.IPv6Pool)...)
	out.Invalid = append(out.Invalid, checkClusters(said.ClusterSelector)...)
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

func (c ClusterCIDRs) held() held {
	return held{client: c.Client, live: c.Live, finalizer: v1alpha1.ClusterCIDRFinalizer, inUse: func(o client.Object) bool {
		is, ok := o.(*v1alpha1.ClusterCIDR)
		return ok && len(is.Status.Clusters) > 0
	}}
}

func (c ClusterCIDRs) read(ctx context.Context, ref podcidr.Ref) (*v1alpha1.ClusterCIDR, error) {
	out := &v1alpha1.ClusterCIDR{}
	return out, c.held().read(ctx, ref, out)
}

// Protect implements Objects: it puts our finalizer on.
func (c ClusterCIDRs) Protect(ctx context.Context, ref podcidr.Ref) error {
	return c.held().protect(ctx, ref, &v1alpha1.ClusterCIDR{})
}

// Release implements Objects: it takes our finalizer off an object that is being deleted, and that no Cluster has an entry
// in. Nobody opens it again.
func (c ClusterCIDRs) Release(ctx context.Context, ref podcidr.Ref, _ string) error {
	return c.held().release(ctx, ref, &v1alpha1.ClusterCIDR{})
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
