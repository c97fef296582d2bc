package incluster

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// GroupVersion of the pools.
var GroupVersion = schema.GroupVersion{Group: "ipam.cluster.x-k8s.io", Version: "v1alpha2"}

// PoolFinalizer keeps a pool until none of its addresses are in use. It is the in-cluster provider's.
const PoolFinalizer = "ipam.cluster.x-k8s.io/ProtectPool"

// Kind is a kind of pool.
type Kind struct {
	Name string
	// Global pools are cluster-scoped; Prefixes are handed out by pools that give each claim a prefix.
	Global, Prefixes bool
}

// The kinds that hand out addresses.
const (
	IPPool       = "InClusterIPPool"
	GlobalIPPool = "GlobalInClusterIPPool"
)

// Kinds are all there are. Releases before 1.1 have no pools of prefixes.
var Kinds = []Kind{
	{Name: IPPool},
	{Name: GlobalIPPool, Global: true},
	{Name: "InClusterPrefixPool", Prefixes: true},
	{Name: "GlobalInClusterPrefixPool", Global: true, Prefixes: true},
}

// New returns an empty object of the kind.
func (k Kind) New() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(GroupVersion.WithKind(k.Name))
	return u
}

// NewMirror returns an empty pool of ours, as one that mirrors this kind is.
func (k Kind) NewMirror() v1alpha1.Pool {
	if k.Global {
		return &v1alpha1.GlobalNetworkPool{}
	}
	return &v1alpha1.NetworkPool{}
}

// suffix of the names of mirrors.
func (k Kind) suffix() string {
	if k.Prefixes {
		return ".in-cluster-prefixes"
	}
	return ".in-cluster"
}

// MirrorName is the name of the pool that mirrors the one of a name.
func (k Kind) MirrorName(pool string) string { return pool + k.suffix() }

func (k Kind) mirrorKind() string {
	if k.Global {
		return v1alpha1.GlobalNetworkPoolKind
	}
	return v1alpha1.NetworkPoolKind
}

// KindOf returns the kind that a reference names; false: it names none of them.
func KindOf(ref ipamv1.IPPoolReference) (Kind, bool) {
	for _, k := range Kinds {
		if ref.APIGroup == GroupVersion.Group && ref.Kind == k.Name {
			return k, true
		}
	}
	return Kind{}, false
}

// KindNamed returns the kind of a name as a person writes it: in any case, of one or of several; false: there is none.
func KindNamed(name string) (Kind, bool) {
	for _, k := range Kinds {
		if strings.EqualFold(name, k.Name) || strings.EqualFold(name, k.Name+"s") {
			return k, true
		}
	}
	return Kind{}, false
}

// Is reports whether a reference is to a pool of the in-cluster provider.
func Is(ref ipamv1.IPPoolReference) bool {
	_, _, is := MirrorOf(ref)
	return is
}

// MirrorOf returns the kind and the name of the pool that mirrors the one of a reference, if it is one of the
// in-cluster provider.
func MirrorOf(ref ipamv1.IPPoolReference) (kind, name string, is bool) {
	if ref.APIGroup != GroupVersion.Group {
		return "", "", false
	}
	for _, k := range Kinds {
		if k.Name == ref.Kind {
			return k.mirrorKind(), k.MirrorName(ref.Name), true
		}
	}
	return "", "", false
}

// MirroredBy returns the reference to the pool that a pool of ours of this kind and name mirrors, if it has the
// name of a mirror.
func MirroredBy(kind, name string) (ref ipamv1.IPPoolReference, is bool) {
	for _, k := range Kinds {
		if pool, has := strings.CutSuffix(name, k.suffix()); has && k.mirrorKind() == kind {
			return ipamv1.IPPoolReference{APIGroup: GroupVersion.Group, Kind: k.Name, Name: pool}, true
		}
	}
	return ipamv1.IPPoolReference{}, false
}
