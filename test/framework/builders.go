package framework

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// DefaultNamespace is where built objects live that are not given another.
const DefaultNamespace = metav1.NamespaceDefault

// spec holds the setters that both kinds of pool share; B is the builder they return.
type spec[B any] struct {
	self B
	spec *v1alpha1.NetworkPoolSpec
}

// CIDR sets the block of the pool.
func (b spec[B]) CIDR(cidr string) B { b.spec.CIDR = cidr; return b.self }

// Addresses adds CIDRs, ranges or single addresses.
func (b spec[B]) Addresses(addresses ...string) B {
	b.spec.Addresses = append(b.spec.Addresses, addresses...)
	return b.self
}

// Subnet adds a network the addresses live in; an empty gateway is none.
func (b spec[B]) Subnet(cidr, gateway string) B {
	b.spec.Subnets = append(b.spec.Subnets, v1alpha1.Subnet{CIDR: cidr, Gateway: gateway})
	return b.self
}

// Prefix sets the prefix length of the one subnet.
func (b spec[B]) Prefix(bits int32) B { b.spec.Prefix = &bits; return b.self }

// Gateway sets the gateway of the one subnet.
func (b spec[B]) Gateway(gateway string) B { b.spec.Gateway = gateway; return b.self }

// Reserved adds ranges that are never handed out.
func (b spec[B]) Reserved(ranges ...string) B {
	for _, r := range ranges {
		b.spec.Reserved = append(b.spec.Reserved, v1alpha1.ReservedRange{Addresses: r})
	}
	return b.self
}

// Tenant confines what is handed out to start..end.
func (b spec[B]) Tenant(start, end string) B {
	b.spec.TenantAllocation = &v1alpha1.TenantAllocation{Start: start, End: end}
	return b.self
}

// Network sets the layer-2 or routing domain.
func (b spec[B]) Network(name string) B { b.spec.Network = name; return b.self }

// AllowOverlap lets the pool overlap an older one of its network.
func (b spec[B]) AllowOverlap() B { b.spec.AllowOverlap = true; return b.self }

// PreAllocate keeps an address for the claim of a name.
func (b spec[B]) PreAllocate(claim, address string) B {
	if b.spec.PreAllocations == nil {
		b.spec.PreAllocations = map[string]string{}
	}
	b.spec.PreAllocations[claim] = address
	return b.self
}

// Order sets which free address is handed out.
func (b spec[B]) Order(order v1alpha1.AllocationOrder) B {
	b.spec.AllocationOrder = order
	return b.self
}

// Reuse sets how many seconds a released address rests.
func (b spec[B]) Reuse(graceSeconds int64) B {
	b.spec.AddressReuseGracePeriodSeconds = &graceSeconds
	return b.self
}

// Carvable lets other pools be carved from the pool.
func (b spec[B]) Carvable() B { b.spec.Carvable = &v1alpha1.Carvable{}; return b.self }

// Carve has the pool take its addresses from another, in blocks of a prefix length, of which it has so many.
func (b spec[B]) Carve(kind, parent string, prefixLength, least, most int32) B {
	b.spec.Carve = &v1alpha1.Carve{
		PoolRef: v1alpha1.PoolReference{Kind: kind, Name: parent}, PrefixLength: prefixLength,
		Blocks: v1alpha1.CarvedBlocks{Min: least, Max: most},
	}
	return b.self
}

// PerClaim gives each claim a prefix of this length.
func (b spec[B]) PerClaim(prefixLength int32) B {
	b.spec.AllocationPrefixLength = &prefixLength
	return b.self
}

// AllocateReserved hands out the first and last address of subnets too.
func (b spec[B]) AllocateReserved() B { b.spec.AllocateReservedIPAddresses = true; return b.self }

// PoolBuilder builds a NetworkPool.
type PoolBuilder struct {
	spec[*PoolBuilder]
	pool v1alpha1.NetworkPool
}

// MakePool starts a NetworkPool in the default namespace.
func MakePool(name string) *PoolBuilder {
	b := &PoolBuilder{pool: v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: DefaultNamespace},
	}}
	b.spec = spec[*PoolBuilder]{self: b, spec: &b.pool.Spec}
	return b
}

// Namespace sets the namespace.
func (b *PoolBuilder) Namespace(namespace string) *PoolBuilder {
	b.pool.Namespace = namespace
	return b
}

// Annotate sets an annotation.
func (b *PoolBuilder) Annotate(key, value string) *PoolBuilder {
	metav1.SetMetaDataAnnotation(&b.pool.ObjectMeta, key, value)
	return b
}

// Obj returns the pool; the builder may be used again.
func (b *PoolBuilder) Obj() *v1alpha1.NetworkPool { return b.pool.DeepCopy() }

// GlobalPoolBuilder builds a GlobalNetworkPool.
type GlobalPoolBuilder struct {
	spec[*GlobalPoolBuilder]
	pool v1alpha1.GlobalNetworkPool
}

// MakeGlobalPool starts a GlobalNetworkPool that serves every namespace.
func MakeGlobalPool(name string) *GlobalPoolBuilder {
	b := &GlobalPoolBuilder{pool: v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	b.spec = spec[*GlobalPoolBuilder]{self: b, spec: &b.pool.Spec.NetworkPoolSpec}
	return b
}

// ForNamespaces selects the namespaces it serves by a label.
func (b *GlobalPoolBuilder) ForNamespaces(key, value string) *GlobalPoolBuilder {
	b.pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	return b
}

// Obj returns the pool; the builder may be used again.
func (b *GlobalPoolBuilder) Obj() *v1alpha1.GlobalNetworkPool { return b.pool.DeepCopy() }

// ClaimBuilder builds an IPAddressClaim.
type ClaimBuilder struct{ claim ipamv1.IPAddressClaim }

// MakeClaim starts a claim; an empty namespace is the default one.
func MakeClaim(namespace, name string) *ClaimBuilder {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	return &ClaimBuilder{claim: ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}}
}

// Pool names a NetworkPool.
func (b *ClaimBuilder) Pool(name string) *ClaimBuilder {
	return b.PoolRef(v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, name)
}

// GlobalPool names a GlobalNetworkPool.
func (b *ClaimBuilder) GlobalPool(name string) *ClaimBuilder {
	return b.PoolRef(v1alpha1.GroupVersion.Group, v1alpha1.GlobalNetworkPoolKind, name)
}

// PoolRef names a pool of any group and kind.
func (b *ClaimBuilder) PoolRef(group, kind, name string) *ClaimBuilder {
	b.claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: group, Kind: kind, Name: name}
	return b
}

// Cluster sets spec.clusterName.
func (b *ClaimBuilder) Cluster(name string) *ClaimBuilder {
	b.claim.Spec.ClusterName = name
	return b
}

// ClusterLabel sets the label that names the Cluster where spec.clusterName is empty.
func (b *ClaimBuilder) ClusterLabel(name string) *ClaimBuilder {
	metav1.SetMetaDataLabel(&b.claim.ObjectMeta, clusterv1.ClusterNameLabel, name)
	return b
}

// Request asks for one particular address.
func (b *ClaimBuilder) Request(address string) *ClaimBuilder {
	return b.Annotate(v1alpha1.RequestedAddressAnnotation, address)
}

// Label sets a label.
func (b *ClaimBuilder) Label(key, value string) *ClaimBuilder {
	metav1.SetMetaDataLabel(&b.claim.ObjectMeta, key, value)
	return b
}

// Annotate sets an annotation.
func (b *ClaimBuilder) Annotate(key, value string) *ClaimBuilder {
	metav1.SetMetaDataAnnotation(&b.claim.ObjectMeta, key, value)
	return b
}

// Obj returns the claim; the builder may be used again.
func (b *ClaimBuilder) Obj() *ipamv1.IPAddressClaim { return b.claim.DeepCopy() }

// AllocationBuilder builds an IPAllocation.
type AllocationBuilder struct{ allocation v1alpha1.IPAllocation }

// MakeAllocation starts an allocation of pool p for the load balancers of a Cluster of its namespace that
// is named tenant.
func MakeAllocation(namespace, name string) *AllocationBuilder {
	return &AllocationBuilder{allocation: v1alpha1.IPAllocation{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.IPAllocationSpec{
			PoolRef:          v1alpha1.PoolReference{Name: "p"},
			TenantClusterRef: v1alpha1.ClusterReference{Namespace: namespace, Name: "tenant"},
			Type:             v1alpha1.LoadBalancerAllocation,
		},
	}}
}

// Pool names a NetworkPool.
func (b *AllocationBuilder) Pool(name string) *AllocationBuilder {
	b.allocation.Spec.PoolRef = v1alpha1.PoolReference{Name: name}
	return b
}

// GlobalPool names a GlobalNetworkPool.
func (b *AllocationBuilder) GlobalPool(name string) *AllocationBuilder {
	b.allocation.Spec.PoolRef = v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: name}
	return b
}

// Cluster names the Cluster that the block is for.
func (b *AllocationBuilder) Cluster(namespace, name string) *AllocationBuilder {
	b.allocation.Spec.TenantClusterRef = v1alpha1.ClusterReference{Namespace: namespace, Name: name}
	return b
}

// Nodes makes it a block for machines.
func (b *AllocationBuilder) Nodes() *AllocationBuilder {
	b.allocation.Spec.Type = v1alpha1.NodesAllocation
	return b
}

// Count sets the number of addresses.
func (b *AllocationBuilder) Count(n int32) *AllocationBuilder {
	b.allocation.Spec.Count = &n
	return b
}

// Pinned asks for a range.
func (b *AllocationBuilder) Pinned(first, last string) *AllocationBuilder {
	b.allocation.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: first, EndAddress: last}
	return b
}

// Label sets a label.
func (b *AllocationBuilder) Label(key, value string) *AllocationBuilder {
	metav1.SetMetaDataLabel(&b.allocation.ObjectMeta, key, value)
	return b
}

// Obj returns the allocation; the builder may be used again.
func (b *AllocationBuilder) Obj() *v1alpha1.IPAllocation { return b.allocation.DeepCopy() }

// LeaseBuilder builds an IPLease.
type LeaseBuilder struct{ lease v1alpha1.IPLease }

// MakeLease starts a lease of pool p.
func MakeLease(namespace, name string) *LeaseBuilder {
	return &LeaseBuilder{lease: v1alpha1.IPLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}},
	}}
}

// Pool names a NetworkPool.
func (b *LeaseBuilder) Pool(name string) *LeaseBuilder {
	b.lease.Spec.PoolRef = v1alpha1.PoolReference{Name: name}
	return b
}

// GlobalPool names a GlobalNetworkPool.
func (b *LeaseBuilder) GlobalPool(name string) *LeaseBuilder {
	b.lease.Spec.PoolRef = v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: name}
	return b
}

// Address asks for an address.
func (b *LeaseBuilder) Address(address string) *LeaseBuilder {
	b.lease.Spec.Address = address
	return b
}

// Obj returns the lease; the builder may be used again.
func (b *LeaseBuilder) Obj() *v1alpha1.IPLease { return b.lease.DeepCopy() }
