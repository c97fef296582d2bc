package cilium

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kind. Cilium's module is not imported for it, because it is large and needs its own
// versions of other modules.
var GroupVersion = schema.GroupVersion{Group: "cilium.io", Version: "v2"}

const poolKind = "CiliumLoadBalancerIPPool"

// Pool is the part of a CiliumLoadBalancerIPPool that is read here. Writes set only the fields that they need.
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PoolSpec   `json:"spec"`
	Status PoolStatus `json:"status,omitzero"`
}

// PoolSpec selects the addresses that Cilium assigns, and the Services that get them.
type PoolSpec struct {
	Blocks          []Block               `json:"blocks,omitempty"`
	Disabled        bool                  `json:"disabled,omitempty"`
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`
	// AllowFirstLastIPs applies to blocks with a CIDR only.
	AllowFirstLastIPs string `json:"allowFirstLastIPs,omitempty"`
}

// Block is a CIDR, or the addresses from Start to Stop; without Stop it is one address.
type Block struct {
	CIDR  string `json:"cidr,omitempty"`
	Start string `json:"start,omitempty"`
	Stop  string `json:"stop,omitempty"`
}

// PoolStatus is what Cilium reports.
type PoolStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolList is a list of pools.
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Pool `json:"items"`
}

// AddToScheme adds the kind to the scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(poolKind), &Pool{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(poolKind+"List"), &PoolList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// DeepCopyObject implements runtime.Object.
func (p *Pool) DeepCopyObject() runtime.Object {
	out := &Pool{TypeMeta: p.TypeMeta, Spec: p.Spec}
	p.DeepCopyInto(&out.ObjectMeta)
	out.Spec.Blocks = slices.Clone(p.Spec.Blocks)
	out.Spec.ServiceSelector = p.Spec.ServiceSelector.DeepCopy()
	out.Status.Conditions = slices.Clone(p.Status.Conditions)
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *PoolList) DeepCopyObject() runtime.Object {
	out := &PoolList{TypeMeta: l.TypeMeta}
	l.DeepCopyInto(&out.ListMeta)
	for i := range l.Items {
		if p, ok := l.Items[i].DeepCopyObject().(*Pool); ok {
			out.Items = append(out.Items, *p)
		}
	}
	return out
}
