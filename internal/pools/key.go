package pools

import (
	"cmp"
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
)

// Key identifies a pool of either kind. Namespace is empty for a GlobalNetworkPool.
type Key struct{ Kind, Namespace, Name string }

// String returns kind, namespace and name for messages.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// GetPool reads the pool, of whichever kind it is.
func (k Key) GetPool(ctx context.Context, from client.Reader) (v1alpha1.Pool, error) {
	var pool v1alpha1.Pool = &v1alpha1.NetworkPool{}
	if k.Kind == v1alpha1.GlobalNetworkPoolKind {
		pool = &v1alpha1.GlobalNetworkPool{}
	}
	return pool, from.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, pool)
}

// PoolReference returns the reference by which a claim in the pool's namespace names the pool.
func (k Key) PoolReference() ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: k.Kind, Name: k.Name}
}

// KeyForPool returns the key of a pool object.
func KeyForPool(p v1alpha1.Pool) Key {
	if _, ok := p.(*v1alpha1.GlobalNetworkPool); ok {
		return Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: p.GetName()}
	}
	return Key{Kind: v1alpha1.NetworkPoolKind, Namespace: p.GetNamespace(), Name: p.GetName()}
}

// KeyFromIPPoolReference returns the key of the pool that a reference in a namespace means; false if it is not a pool
// of ours, by group and kind. A reference to a pool of the in-cluster provider means its mirror.
func KeyFromIPPoolReference(namespace string, ref ipamv1.IPPoolReference) (Key, bool) {
	kind, name, mirrored := incluster.MirrorForRef(ref)
	if !mirrored {
		kind, name = ref.Kind, ref.Name
	}
	switch {
	case !mirrored && ref.APIGroup != v1alpha1.GroupVersion.Group:
	case kind == v1alpha1.NetworkPoolKind:
		return Key{Kind: kind, Namespace: namespace, Name: name}, true
	case kind == v1alpha1.GlobalNetworkPoolKind:
		return Key{Kind: kind, Name: name}, true
	}
	return Key{}, false
}

// KeyFromAllocation returns the key of the pool that an IPAllocation names.
func KeyFromAllocation(a *v1alpha1.IPAllocation) Key {
	return KeyFromPoolReference(a.Namespace, a.Spec.PoolRef)
}

// ChildPoolKey returns the key of the pool that an IPAllocation is a block of; false if the IPAllocation is for a
// Cluster.
func ChildPoolKey(a *v1alpha1.IPAllocation) (Key, bool) {
	if a.Spec.Type != v1alpha1.PoolAllocation || a.Spec.ChildPoolRef == nil {
		return Key{}, false
	}
	return KeyFromPoolReference(a.Namespace, *a.Spec.ChildPoolRef), true
}

// HasEnded reports whether a pool is being deleted and our finalizer is off: another finalizer keeps it, and no
// finalizer can be added. No manager grants from it, or writes its status.
func HasEnded(p v1alpha1.Pool) bool {
	return p.GetDeletionTimestamp() != nil && !slices.Contains(p.GetFinalizers(), v1alpha1.PoolFinalizer)
}

// ParentPoolKey returns the key of the pool that a pool is carved from; false if it is not carved.
func ParentPoolKey(p v1alpha1.Pool) (Key, bool) {
	from := p.PoolSpec().Carve
	if from == nil {
		return Key{}, false
	}
	return KeyFromPoolReference(p.GetNamespace(), from.PoolRef), true
}

// KeyFromPoolReference returns the key of the pool that a reference of our API in a namespace means.
func KeyFromPoolReference(namespace string, ref v1alpha1.PoolReference) Key {
	key, _ := KeyFromIPPoolReference(namespace, ipamv1.IPPoolReference{
		APIGroup: v1alpha1.GroupVersion.Group, Kind: cmp.Or(ref.Kind, v1alpha1.NetworkPoolKind), Name: ref.Name,
	})
	return key
}

// IsPoolKind reports whether the key is of an existing kind of pool. Claims may name another kind of our group: no
// other provider handles these, so their conditions report it.
func (k Key) IsPoolKind() bool {
	return k.Kind == v1alpha1.NetworkPoolKind || k.Kind == v1alpha1.GlobalNetworkPoolKind
}

// IsPoolOwner reports whether an owner reference is to a pool: one of ours, or one of the in-cluster provider.
func IsPoolOwner(owner metav1.OwnerReference) bool {
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	_, ok := KeyFromIPPoolReference("", ipamv1.IPPoolReference{APIGroup: group.Group, Kind: owner.Kind})
	return ok && err == nil
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}

// IsDirectReference reports whether a reference in a namespace is to the pool itself, and not to the pool that it
// mirrors.
func IsDirectReference(namespace string, ref ipamv1.IPPoolReference, pool Key) bool {
	key, ok := KeyFromIPPoolReference(namespace, ref)
	return ok && key == pool && !incluster.IsInClusterRef(ref)
}
