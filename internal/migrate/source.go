package migrate

import (
	"cmp"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Metal3IPPool is the kind of the pools of Metal3's IPAM.
const Metal3IPPool = "IPPool"

// Source names a pool that is imported. Namespace is empty for a global one.
type Source struct{ Kind, Namespace, Name string }

// String is how a person writes it.
func (s Source) String() string {
	if s.Namespace == "" {
		return s.Kind + " " + s.Name
	}
	return s.Kind + " " + s.Namespace + "/" + s.Name
}

func (s Source) origin() origin {
	if s.Kind == Metal3IPPool {
		return metal3Pool{s}
	}
	return inClusterPool{s}
}

// Next is what a person does next: after an import, and after one that was rolled back.
func (s Source) Next() (imported, back string) {
	say := s.origin().words()
	return say.imported, say.back
}

func (s Source) groupVersion() schema.GroupVersion {
	if s.Kind == Metal3IPPool {
		return m3ipamv1.GroupVersion
	}
	return incluster.GroupVersion
}

func (s Source) ref() ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: s.groupVersion().Group, Kind: s.Kind, Name: s.Name}
}

// target is the pool of ours that it becomes.
func (s Source) target(name string) pools.Key {
	key := pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: s.Namespace, Name: cmp.Or(name, s.Name)}
	if s.Kind == incluster.GlobalIPPool {
		key.Kind, key.Namespace = v1alpha1.GlobalNetworkPoolKind, ""
	}
	return key
}
