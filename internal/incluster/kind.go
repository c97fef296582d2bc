package incluster

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// GroupVersion is the API group and version of the pools.
var GroupVersion = schema.GroupVersion{Group: "ipam.cluster.x-k8s.io", Version: "v1alpha2"}

// PoolFinalizer keeps a pool until none of its addresses are in use. It is the in-cluster provider's.
const PoolFinalizer = "ipam.cluster.x-k8s.io/ProtectPool"

// PoolKind is a kind of pool of the in-cluster provider.
type PoolKind struct {
	Name string
	// IsGlobal reports whether the kind is cluster-scoped; IsPrefixPool reports whether its pools give each claim a
	// prefix.
	IsGlobal, IsPrefixPool bool
}

// The kinds that hand out addresses.
const (
	IPPoolKind       = "InClusterIPPool"
	GlobalIPPoolKind = "GlobalInClusterIPPool"
)

// PoolKinds lists all kinds. Releases before 1.1 have no pools of prefixes.
var PoolKinds = []PoolKind{
	{Name: IPPoolKind},
	{Name: GlobalIPPoolKind, IsGlobal: true},
	{Name: "InClusterPrefixPool", IsPrefixPool: true},
	{Name: "GlobalInClusterPrefixPool", IsGlobal: true, IsPrefixPool: true},
}

// NewPool returns an empty object of the kind.
func (k PoolKind) NewPool() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(GroupVersion.WithKind(k.Name))
	return u
}

// NewMirror returns an empty pool of ours, of the kind that mirrors this kind.
func (k PoolKind) NewMirror() v1alpha1.Pool {
	if k.IsGlobal {
		return &v1alpha1.GlobalNetworkPool{}
	}
	return &v1alpha1.NetworkPool{}
}

// mirrorSuffix returns the suffix of the names of mirrors.
func (k PoolKind) mirrorSuffix() string {
	if k.IsPrefixPool {
		return ".in-cluster-prefixes"
	}
	return ".in-cluster"
}

// MirrorName returns the name of the mirror of a pool.
func (k PoolKind) MirrorName(pool string) string { return pool + k.mirrorSuffix() }

func (k PoolKind) mirrorKind() string {
	if k.IsGlobal {
		return v1alpha1.GlobalNetworkPoolKind
	}
	return v1alpha1.NetworkPoolKind
}

// KindForRef returns the kind that a reference names; false where it names none of them.
func KindForRef(ref ipamv1.IPPoolReference) (PoolKind, bool) {
	for _, k := range PoolKinds {
		if ref.APIGroup == GroupVersion.Group && ref.Kind == k.Name {
			return k, true
		}
	}
	return PoolKind{}, false
}

// KindByName returns the kind of a name as users write it: in any case, singular or plural; false where there is none.
func KindByName(name string) (PoolKind, bool) {
	for _, k := range PoolKinds {
		if strings.EqualFold(name, k.Name) || strings.EqualFold(name, k.Name+"s") {
			return k, true
		}
	}
	return PoolKind{}, false
}

// IsInClusterRef reports whether a reference is to a pool of the in-cluster provider.
func IsInClusterRef(ref ipamv1.IPPoolReference) bool {
	_, _, ok := MirrorForRef(ref)
	return ok
}

// MirrorForRef returns the kind and the name of the mirror of the pool that a reference names; false where that is not
// a pool of the in-cluster provider.
func MirrorForRef(ref ipamv1.IPPoolReference) (kind, name string, ok bool) {
	if ref.APIGroup != GroupVersion.Group {
		return "", "", false
	}
	for _, k := range PoolKinds {
		if k.Name == ref.Kind {
			return k.mirrorKind(), k.MirrorName(ref.Name), true
		}
	}
	return "", "", false
}

// RefForMirror returns the reference to the source pool of a mirror with this kind and name; false where the name is
// not that of a mirror.
func RefForMirror(kind, name string) (ref ipamv1.IPPoolReference, ok bool) {
	for _, k := range PoolKinds {
		if pool, found := strings.CutSuffix(name, k.mirrorSuffix()); found && k.mirrorKind() == kind {
			return ipamv1.IPPoolReference{APIGroup: GroupVersion.Group, Kind: k.Name, Name: pool}, true
		}
	}
	return ipamv1.IPPoolReference{}, false
}
