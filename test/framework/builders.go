package framework

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// DefaultNamespace is the namespace of built objects that set no other.
const DefaultNamespace = metav1.NamespaceDefault

// specBuilder holds the setters that both kinds of pool share; B is the type of the builder that they return.
type specBuilder[B any] struct {
	builder B
	spec    *v1alpha1.NetworkPoolSpec
}

// CIDR sets the CIDR of the pool.
func (b specBuilder[B]) CIDR(cidr string) B { b.spec.CIDR = cidr; return b.builder }

// Addresses adds CIDRs, ranges or single addresses.
func (b specBuilder[B]) Addresses(addresses ...string) B {
	b.spec.Addresses = append(b.spec.Addresses, addresses...)
	return b.builder
}

// Subnet adds a network that the addresses are in; an empty gateway means no gateway.
func (b specBuilder[B]) Subnet(cidr, gateway string) B {
	b.spec.Subnets = append(b.spec.Subnets, v1alpha1.Subnet{CIDR: cidr, Gateway: gateway})
	return b.builder
}

// Prefix sets the prefix length of the pool's only subnet.
func (b specBuilder[B]) Prefix(bits int32) B { b.spec.Prefix = &bits; return b.builder }

// Gateway sets the gateway of the pool's only subnet.
func (b specBuilder[B]) Gateway(gateway string) B { b.spec.Gateway = gateway; return b.builder }

// Reserved adds ranges that are never handed out.
func (b specBuilder[B]) Reserved(ranges ...string) B {
	for _, r := range ranges {
		b.spec.Reserved = append(b.spec.Reserved, v1alpha1.ReservedRange{Addresses: r})
	}
	return b.builder
}

// TenantRange limits the addresses that the pool hands out to start..end.
func (b specBuilder[B]) TenantRange(start, end string) B {
	b.spec.TenantAllocation = &v1alpha1.TenantAllocation{Start: start, End: end}
	return b.builder
}

// Network sets the layer-2 or routing domain.
func (b specBuilder[B]) Network(name string) B { b.spec.Network = name; return b.builder }

// AllowOverlap allows the pool to overlap an older pool of its network.
func (b specBuilder[B]) AllowOverlap() B { b.spec.AllowOverlap = true; return b.builder }

// PreAllocate reserves an address for the claim of the given name.
func (b specBuilder[B]) PreAllocate(claim, address string) B {
	if b.spec.PreAllocations == nil {
		b.spec.PreAllocations = map[string]string{}
	}
	b.spec.PreAllocations[claim] = address
	return b.builder
}

// AllocationOrder sets which free address the pool hands out next.
func (b specBuilder[B]) AllocationOrder(order v1alpha1.AllocationOrder) B {
	b.spec.AllocationOrder = order
	return b.builder
}

// ReuseGracePeriod sets how many seconds a released address cools down.
func (b specBuilder[B]) ReuseGracePeriod(graceSeconds int64) B {
	b.spec.AddressReuseGracePeriodSeconds = &graceSeconds
	return b.builder
}

// Carvable allows other pools to be carved from the pool.
func (b specBuilder[B]) Carvable() B { b.spec.Carvable = &v1alpha1.Carvable{}; return b.builder }

// Carve makes the pool take its addresses from a parent pool, in blocks of the given prefix length; it has at least
// `least` and at most `most` blocks.
func (b specBuilder[B]) Carve(kind, parent string, prefixLength, least, most int32) B {
	b.spec.Carve = &v1alpha1.Carve{
		PoolRef: v1alpha1.PoolReference{Kind: kind, Name: parent}, PrefixLength: prefixLength,
		Blocks: v1alpha1.CarvedBlocks{Min: least, Max: most},
	}
	return b.builder
}

// PrefixPerClaim gives each claim a prefix of the given length.
func (b specBuilder[B]) PrefixPerClaim(prefixLength int32) B {
	b.spec.AllocationPrefixLength = &prefixLength
	return b.builder
}

// AllocateReservedAddresses makes the pool hand out the first and the last address of its subnets too.
func (b specBuilder[B]) AllocateReservedAddresses() B {
	b.spec.AllocateReservedIPAddresses = true
	return b.builder
}

// PoolBuilder builds a NetworkPool.
type PoolBuilder struct {
	specBuilder[*PoolBuilder]
	pool v1alpha1.NetworkPool
}

// MakePool returns a builder of a NetworkPool in the default namespace.
func MakePool(name string) *PoolBuilder {
	b := &PoolBuilder{pool: v1alpha1.NetworkPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: DefaultNamespace},
	}}
	b.specBuilder = specBuilder[*PoolBuilder]{builder: b, spec: &b.pool.Spec}
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
	specBuilder[*GlobalPoolBuilder]
	pool v1alpha1.GlobalNetworkPool
}

// MakeGlobalPool returns a builder of a GlobalNetworkPool that serves every namespace.
func MakeGlobalPool(name string) *GlobalPoolBuilder {
	b := &GlobalPoolBuilder{pool: v1alpha1.GlobalNetworkPool{ObjectMeta: metav1.ObjectMeta{Name: name}}}
	b.specBuilder = specBuilder[*GlobalPoolBuilder]{builder: b, spec: &b.pool.Spec.NetworkPoolSpec}
	return b
}

// ForNamespaces restricts the pool to namespaces with the given label.
func (b *GlobalPoolBuilder) ForNamespaces(key, value string) *GlobalPoolBuilder {
	b.pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	return b
}

// Obj returns the pool; the builder may be used again.
func (b *GlobalPoolBuilder) Obj() *v1alpha1.GlobalNetworkPool { return b.pool.DeepCopy() }

// ClaimBuilder builds an IPAddressClaim.
type ClaimBuilder struct{ claim ipamv1.IPAddressClaim }

// MakeClaim returns a builder of a claim; an empty namespace means DefaultNamespace.
func MakeClaim(namespace, name string) *ClaimBuilder {
	if namespace == "" {
		namespace = DefaultNamespace
	}
	return &ClaimBuilder{claim: ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
	}}
}

// Pool sets the pool reference to a NetworkPool.
func (b *ClaimBuilder) Pool(name string) *ClaimBuilder {
	return b.PoolRef(v1alpha1.GroupVersion.Group, v1alpha1.NetworkPoolKind, name)
}

// GlobalPool sets the pool reference to a GlobalNetworkPool.
func (b *ClaimBuilder) GlobalPool(name string) *ClaimBuilder {
	return b.PoolRef(v1alpha1.GroupVersion.Group, v1alpha1.GlobalNetworkPoolKind, name)
}

// PoolRef sets the pool reference to a pool of any group and kind.
func (b *ClaimBuilder) PoolRef(group, kind, name string) *ClaimBuilder {
	b.claim.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: group, Kind: kind, Name: name}
	return b
}

// Cluster sets spec.clusterName.
func (b *ClaimBuilder) Cluster(name string) *ClaimBuilder {
	b.claim.Spec.ClusterName = name
	return b
}

// ClusterLabel sets the label that names the Cluster of a claim whose spec.clusterName is empty.
func (b *ClaimBuilder) ClusterLabel(name string) *ClaimBuilder {
	metav1.SetMetaDataLabel(&b.claim.ObjectMeta, clusterv1.ClusterNameLabel, name)
	return b
}

// RequestAddress requests one particular address.
func (b *ClaimBuilder) RequestAddress(address string) *ClaimBuilder {
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

// MakeAllocation returns a builder of an allocation from the pool p, for the load balancers of the Cluster "tenant"
// in the same namespace.
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

// Pool sets the pool reference to a NetworkPool.
func (b *AllocationBuilder) Pool(name string) *AllocationBuilder {
	b.allocation.Spec.PoolRef = v1alpha1.PoolReference{Name: name}
	return b
}

// GlobalPool sets the pool reference to a GlobalNetworkPool.
func (b *AllocationBuilder) GlobalPool(name string) *AllocationBuilder {
	b.allocation.Spec.PoolRef = v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: name}
	return b
}

// Cluster sets the Cluster that the block is for.
func (b *AllocationBuilder) Cluster(namespace, name string) *AllocationBuilder {
	b.allocation.Spec.TenantClusterRef = v1alpha1.ClusterReference{Namespace: namespace, Name: name}
	return b
}

// ForNodes makes the allocation a block for machines.
func (b *AllocationBuilder) ForNodes() *AllocationBuilder {
	b.allocation.Spec.Type = v1alpha1.NodesAllocation
	return b
}

// Count sets the number of addresses.
func (b *AllocationBuilder) Count(n int32) *AllocationBuilder {
	b.allocation.Spec.Count = &n
	return b
}

// PinnedRange requests a particular range.
func (b *AllocationBuilder) PinnedRange(first, last string) *AllocationBuilder {
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

// MakeLease returns a builder of a lease from the pool p.
func MakeLease(namespace, name string) *LeaseBuilder {
	return &LeaseBuilder{lease: v1alpha1.IPLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.IPLeaseSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}},
	}}
}

// Pool sets the pool reference to a NetworkPool.
func (b *LeaseBuilder) Pool(name string) *LeaseBuilder {
	b.lease.Spec.PoolRef = v1alpha1.PoolReference{Name: name}
	return b
}

// GlobalPool sets the pool reference to a GlobalNetworkPool.
func (b *LeaseBuilder) GlobalPool(name string) *LeaseBuilder {
	b.lease.Spec.PoolRef = v1alpha1.PoolReference{Kind: v1alpha1.GlobalNetworkPoolKind, Name: name}
	return b
}

// RequestAddress requests one particular address.
func (b *LeaseBuilder) RequestAddress(address string) *LeaseBuilder {
	b.lease.Spec.Address = address
	return b
}

// Obj returns the lease; the builder may be used again.
func (b *LeaseBuilder) Obj() *v1alpha1.IPLease { return b.lease.DeepCopy() }
