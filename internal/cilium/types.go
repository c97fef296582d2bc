package cilium

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion of the kind. Cilium's module is not imported for it: it is large, and needs versions of its own.
var GroupVersion = schema.GroupVersion{Group: "cilium.io", Version: "v2"}

const kind = "CiliumLoadBalancerIPPool"

// Pool is what matters here of a CiliumLoadBalancerIPPool. It is read; what is written says nothing of other fields.
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   PoolSpec   `json:"spec"`
	Status PoolStatus `json:"status,omitzero"`
}

// PoolSpec is what Cilium gives to which Services.
type PoolSpec struct {
	Blocks          []Block               `json:"blocks,omitempty"`
	Disabled        bool                  `json:"disabled,omitempty"`
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`
	// AllowFirstLastIPs is of blocks with a CIDR alone.
	AllowFirstLastIPs string `json:"allowFirstLastIPs,omitempty"`
}

// Block is a CIDR, or the addresses from Start to Stop; without Stop it is one address.
type Block struct {
	CIDR  string `json:"cidr,omitempty"`
	Start string `json:"start,omitempty"`
	Stop  string `json:"stop,omitempty"`
}

// PoolStatus is what Cilium says.
type PoolStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PoolList is a list of them.
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Pool `json:"items"`
}

// AddToScheme has a client know the kind.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(kind), &Pool{})
	scheme.AddKnownTypeWithName(GroupVersion.WithKind(kind+"List"), &PoolList{})
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
		if p, is := l.Items[i].DeepCopyObject().(*Pool); is {
			out.Items = append(out.Items, *p)
		}
	}
	return out
}
