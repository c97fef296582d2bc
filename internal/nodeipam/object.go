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

// errClosing means that an object is being deleted, is gone, or has been replaced by another one of its name: nothing
// is granted from it.
var errClosing = errors.New("nothing more is given of it")

// RangeObject is an object that CIDRs are granted from, as a watch shows it.
type RangeObject struct {
	podcidr.Ref
	// Range is its compiled spec; nil where the spec is invalid, and ValidationErrors has the reasons.
	Range            *podcidr.Range
	ValidationErrors field.ErrorList
	// Closing reports whether nothing more is granted from it, as it is being deleted, or no longer selects these
	// Nodes. HasFinalizer reports whether it is marked as in use here, by our finalizer or, in a fleet, by an entry for
	// the Cluster.
	Closing, HasFinalizer bool
	// BlockSources are the pools that the blocks of each family come from; nil means that the family has no pool.
	BlockSources [2]*BlockSource
	// EntryMark is the mark of the entry, which changes whenever the object is opened.
	EntryMark string
}

// RefForClusterCIDR returns the reference of a ClusterCIDR.
func RefForClusterCIDR(c *v1alpha1.ClusterCIDR) podcidr.Ref {
	return podcidr.Ref{Kind: v1alpha1.ClusterCIDRKind, Name: c.Name, UID: c.UID}
}

// RangeObjectFromClusterCIDR returns a ClusterCIDR as a RangeObject.
func RangeObjectFromClusterCIDR(c *v1alpha1.ClusterCIDR) RangeObject {
	return newRangeObject(RefForClusterCIDR(c), c, v1alpha1.ClusterCIDRFinalizer, &c.Spec)
}

// newRangeObject returns an object of any kind as a RangeObject, given its spec and the finalizer that marks it as in
// use.
func newRangeObject(ref podcidr.Ref, o client.Object, finalizer string, declared *v1alpha1.ClusterCIDRSpec) RangeObject {
	out := RangeObject{Ref: ref, Closing: o.GetDeletionTimestamp() != nil, HasFinalizer: controllerutil.ContainsFinalizer(o, finalizer)}
	spec := podcidr.RangeSpec{NodeSelector: declared.NodeSelector}
	spec.HostBits = [2]int{int(declared.PerNodeHostBits), int(ptr.Deref(declared.PerNodeHostBitsIPv6, declared.PerNodeHostBits))}
	for f, text := range []string{declared.IPv4, declared.IPv6} {
		if text == "" {
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			out.ValidationErrors = append(out.ValidationErrors, field.Invalid(field.NewPath("spec", strings.ToLower(podcidr.Family(f).String())), text, "is no CIDR"))
			continue
		}
		spec.CIDRs[f] = append(spec.CIDRs[f], p)
	}
	out.ValidationErrors = append(out.ValidationErrors, out.addBlockSources(&spec, declared.IPv4Pool, declared.IPv6Pool)...)
	out.ValidationErrors = append(out.ValidationErrors, validateClusterSelector(declared.ClusterSelector)...)
	if len(out.ValidationErrors) == 0 {
		out.Range, out.ValidationErrors = podcidr.CompileRange(out.Ref, spec)
	}
	if out.Range != nil {
		out.Range.Closing = out.Closing
	}
	return out
}

// ObjectProtector marks the objects that CIDRs are granted from as in use, on the API server.
type ObjectProtector interface {
	// ProtectObject marks an object as in use, before anything is granted from it. It returns errClosing where nothing
	// may be granted from the object.
	ProtectObject(ctx context.Context, ref podcidr.Ref) error
	// UnprotectObject marks an object that was closed as no longer in use, unless its mark has changed by now: then it
	// was opened since.
	UnprotectObject(ctx context.Context, ref podcidr.Ref, mark string) error
	// HasProtectedObjects reports whether any object is marked as in use: then there was a manager before.
	HasProtectedObjects(ctx context.Context) (bool, error)
}

// ClusterCIDRProtector protects the ClusterCIDRs of the manager's own cluster.
type ClusterCIDRProtector struct {
	Client client.Client
	// Live reads the current state of the API server.
	Live client.Reader
}

func (c ClusterCIDRProtector) finalizerProtector() finalizerProtector {
	return finalizerProtector{client: c.Client, live: c.Live, finalizer: v1alpha1.ClusterCIDRFinalizer, isInUse: func(o client.Object) bool {
		clusterCIDR, ok := o.(*v1alpha1.ClusterCIDR)
		return ok && len(clusterCIDR.Status.Clusters) > 0
	}}
}

func (c ClusterCIDRProtector) getLive(ctx context.Context, ref podcidr.Ref) (*v1alpha1.ClusterCIDR, error) {
	out := &v1alpha1.ClusterCIDR{}
	return out, c.finalizerProtector().getLive(ctx, ref, out)
}

// ProtectObject implements ObjectProtector: it adds our finalizer.
func (c ClusterCIDRProtector) ProtectObject(ctx context.Context, ref podcidr.Ref) error {
	return c.finalizerProtector().addFinalizer(ctx, ref, &v1alpha1.ClusterCIDR{})
}

// UnprotectObject implements ObjectProtector: it removes our finalizer from an object that is being deleted and in
// which no Cluster has an entry. No manager opens it again.
func (c ClusterCIDRProtector) UnprotectObject(ctx context.Context, ref podcidr.Ref, _ string) error {
	return c.finalizerProtector().removeFinalizer(ctx, ref, &v1alpha1.ClusterCIDR{})
}

// HasProtectedObjects implements ObjectProtector.
func (c ClusterCIDRProtector) HasProtectedObjects(ctx context.Context) (bool, error) {
	return c.hasMatching(ctx, func(o *v1alpha1.ClusterCIDR) bool {
		return IsLocal(o) && controllerutil.ContainsFinalizer(o, v1alpha1.ClusterCIDRFinalizer)
	})
}

func (c ClusterCIDRProtector) hasMatching(ctx context.Context, matches func(*v1alpha1.ClusterCIDR) bool) (bool, error) {
	var all v1alpha1.ClusterCIDRList
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	if err := c.Live.List(ctx, &all); err != nil {
		return false, fmt.Errorf("listing ClusterCIDRs: %w", err)
	}
	for i := range all.Items {
		if matches(&all.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}
