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

// Metal3IPPoolKind is the kind of the pools of Metal3's IPAM.
const Metal3IPPoolKind = "IPPool"

// Source names a pool that is imported. Namespace is empty for a global one.
type Source struct{ Kind, Namespace, Name string }

// String returns the kind, namespace and name, as users write them.
func (s Source) String() string {
	if s.Namespace == "" {
		return s.Kind + " " + s.Name
	}
	return s.Kind + " " + s.Namespace + "/" + s.Name
}

func (s Source) provider() sourceProvider {
	if s.Kind == Metal3IPPoolKind {
		return metal3Pool{s}
	}
	return inClusterPool{s}
}

// NextSteps returns the next steps of the user: after an import, and after a rollback.
func (s Source) NextSteps() (imported, back string) {
	texts := s.provider().texts()
	return texts.afterImport, texts.afterRollback
}

func (s Source) groupVersion() schema.GroupVersion {
	if s.Kind == Metal3IPPoolKind {
		return m3ipamv1.GroupVersion
	}
	return incluster.GroupVersion
}

func (s Source) poolRef() ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: s.groupVersion().Group, Kind: s.Kind, Name: s.Name}
}

// targetKey returns the key of our pool. An empty name means the name of the source.
func (s Source) targetKey(name string) pools.Key {
	key := pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: s.Namespace, Name: cmp.Or(name, s.Name)}
	if s.Kind == incluster.GlobalIPPoolKind {
		key.Kind, key.Namespace = v1alpha1.GlobalNetworkPoolKind, ""
	}
	return key
}
