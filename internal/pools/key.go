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

// Key names a pool, of either kind. Namespace is empty for a GlobalNetworkPool.
type Key struct{ Kind, Namespace, Name string }

// String returns kind, namespace and name as a person reads them.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Kind + " " + k.Name
	}
	return k.Kind + " " + k.Namespace + "/" + k.Name
}

// Get reads the pool, of whichever kind it is.
func (k Key) Get(ctx context.Context, from client.Reader) (v1alpha1.Pool, error) {
	var pool v1alpha1.Pool = &v1alpha1.NetworkPool{}
	if k.Kind == v1alpha1.GlobalNetworkPoolKind {
		pool = &v1alpha1.GlobalNetworkPool{}
	}
	return pool, from.Get(ctx, client.ObjectKey{Namespace: k.Namespace, Name: k.Name}, pool)
}

// Ref is how a claim of its namespace names the pool.
func (k Key) Ref() ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: k.Kind, Name: k.Name}
}

// KeyOf names the pool that an object is.
func KeyOf(p v1alpha1.Pool) Key {
	if _, ok := p.(*v1alpha1.GlobalNetworkPool); ok {
		return Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: p.GetName()}
	}
	return Key{Kind: v1alpha1.NetworkPoolKind, Namespace: p.GetNamespace(), Name: p.GetName()}
}

// KeyOfRef names the pool a reference in a namespace means; false if it is not a pool of ours: group
// and kind both decide. A pool of the in-cluster provider means the one that mirrors it.
func KeyOfRef(namespace string, ref ipamv1.IPPoolReference) (Key, bool) {
	kind, name, mirrored := incluster.MirrorOf(ref)
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

// KeyOfAllocation names the pool that an IPAllocation means.
func KeyOfAllocation(a *v1alpha1.IPAllocation) Key {
	return KeyOfPool(a.Namespace, a.Spec.PoolRef)
}

// ChildOf names the pool that an IPAllocation is a block for; false: it is for a Cluster.
func ChildOf(a *v1alpha1.IPAllocation) (Key, bool) {
	if a.Spec.Type != v1alpha1.PoolAllocation || a.Spec.ChildPoolRef == nil {
		return Key{}, false
	}
	return KeyOfPool(a.Namespace, *a.Spec.ChildPoolRef), true
}

// HasEnded reports whether a pool is deleted and our finalizer is off: another's keeps it, and no finalizer can be added to it. No
// manager grants from it, or writes its status.
func HasEnded(p v1alpha1.Pool) bool {
	return p.GetDeletionTimestamp() != nil && !slices.Contains(p.GetFinalizers(), v1alpha1.PoolFinalizer)
}

// ParentOf names the pool that a pool is carved from, if it is.
func ParentOf(p v1alpha1.Pool) (Key, bool) {
	from := p.PoolSpec().Carve
	if from == nil {
		return Key{}, false
	}
	return KeyOfPool(p.GetNamespace(), from.PoolRef), true
}

// KeyOfPool names the pool that a reference of ours in a namespace means.
func KeyOfPool(namespace string, ref v1alpha1.PoolReference) Key {
	key, _ := KeyOfRef(namespace, ipamv1.IPPoolReference{
		APIGroup: v1alpha1.GroupVersion.Group, Kind: cmp.Or(ref.Kind, v1alpha1.NetworkPoolKind), Name: ref.Name,
	})
	return key
}

// IsPool reports whether there is such a kind of pool. Claims may name another kind of our group: nobody else looks
// after it, so they are told.
func (k Key) IsPool() bool {
	return k.Kind == v1alpha1.NetworkPoolKind || k.Kind == v1alpha1.GlobalNetworkPoolKind
}

// IsOwner reports whether an owner of an object is a pool: one of ours, or one of the in-cluster provider.
func IsOwner(owner metav1.OwnerReference) bool {
	group, err := schema.ParseGroupVersion(owner.APIVersion)
	_, is := KeyOfRef("", ipamv1.IPPoolReference{APIGroup: group.Group, Kind: owner.Kind})
	return is && err == nil
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Kind, other.Kind), cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name))
}

// Names reports whether a reference in a namespace is to a pool itself, and not to what that mirrors.
func Names(namespace string, ref ipamv1.IPPoolReference, pool Key) bool {
	key, ours := KeyOfRef(namespace, ref)
	return ours && key == pool && !incluster.Is(ref)
}
