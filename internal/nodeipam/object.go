package nodeipam

import (
	"context"
	"errors"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
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

// IsLocal reports whether a ClusterCIDR is for the Nodes of the cluster that it is in.
func IsLocal(c *v1alpha1.ClusterCIDR) bool { return c.Spec.ClusterSelector == nil }

// validateClusterSelector returns what is wrong with a clusterSelector.
func validateClusterSelector(s *metav1.LabelSelector) field.ErrorList {
	if s == nil {
		return nil
	}
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "clusterSelector"), metav1.FormatLabelSelector(s), err.Error())}
	}
	return nil
}
