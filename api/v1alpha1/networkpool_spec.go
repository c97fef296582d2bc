package v1alpha1

// The rules below say at kubectl apply what poolspec would find later. They cover what CEL can bound:
// fields of a pool with a cidr and no addresses of its own, pairs of fields, and families. What needs
// sets of ranges is checked by the webhook and the reconciler. Where a rule needs the text of a
// prefix length it writes the digits one by one: the API server cannot bound the cost of string(int).

// NetworkPoolSpec describes the addresses of a pool and how they are handed out.
// +kubebuilder:validation:XValidation:rule="(has(self.cidr) && self.cidr.size() > 0) || has(self.carve) || (has(self.addresses) && self.addresses.size() > 0)",message="a pool needs addresses: set cidr, addresses, or both, or carve"
// +kubebuilder:validation:XValidation:rule="!has(self.carve) || !((has(self.cidr) && self.cidr.size() > 0) || has(self.addresses) || has(self.subnets) || has(self.prefix) || (has(self.gateway) && self.gateway.size() > 0) || (has(self.network) && self.network.size() > 0) || has(self.allowOverlap))",message="a pool that carves its addresses from another has them, their network and their gateway from there: remove cidr, addresses, subnets, prefix, gateway, network and allowOverlap, or carve"
// +kubebuilder:validation:XValidation:rule="has(self.carve) == has(oldSelf.carve)",message="cannot be added or removed later, because addresses are in use; make a new pool",fieldPath=".carve"
// +kubebuilder:validation:XValidation:rule="!has(self.carve) || !has(self.allocationPrefixLength) || self.carve.prefixLength <= self.allocationPrefixLength",message="is longer than allocationPrefixLength: a block has to hold at least one prefix for a claim",fieldPath=".carve.prefixLength"
// +kubebuilder:validation:XValidation:rule="[(has(self.cidr) && self.cidr.size() > 0 ? [self.cidr] : []) + (has(self.gateway) && self.gateway.size() > 0 ? [self.gateway] : []) + (has(self.addresses) ? self.addresses : []) + (has(self.subnets) ? self.subnets.map(s, s.cidr) : []) + (has(self.reserved) ? self.reserved.map(r, has(r.addresses) ? r.addresses : has(r.cidr) ? r.cidr : '-') : []) + (has(self.tenantAllocation) ? [self.tenantAllocation.start] : []) + (has(self.preAllocations) ? self.preAllocations.map(k, self.preAllocations[k]) : [])].all(l, l.all(a, a.contains(':')) || !l.exists(a, a.contains(':')))",message="a pool has addresses of one family, IPv4 or IPv6, in all of its fields: use one pool for each family"
// +kubebuilder:validation:XValidation:rule="!has(self.prefix) || self.prefix <= 32 || (has(self.cidr) && self.cidr.contains(':')) || (has(self.addresses) && self.addresses.exists(a, a.contains(':')))",message="must be at most 32 in an IPv4 pool",fieldPath=".prefix"
// +kubebuilder:validation:XValidation:rule="!has(self.allocationPrefixLength) || self.allocationPrefixLength <= 32 || has(self.carve) || (has(self.cidr) && self.cidr.contains(':')) || (has(self.addresses) && self.addresses.exists(a, a.contains(':')))",message="must be at most 32 in an IPv4 pool",fieldPath=".allocationPrefixLength"
// +kubebuilder:validation:XValidation:rule="has(self.allocationPrefixLength) == has(oldSelf.allocationPrefixLength) && (!has(self.allocationPrefixLength) || self.allocationPrefixLength == oldSelf.allocationPrefixLength)",message="is immutable, and cannot be added or removed later: claims already hold what they were given; make a new pool",fieldPath=".allocationPrefixLength"
// +kubebuilder:validation:XValidation:rule="!has(self.reserved) || has(self.addresses) || !has(self.cidr) || !isCIDR(self.cidr) || self.reserved.all(r, (has(r.addresses) ? r.addresses : has(r.cidr) ? r.cidr : '-').split('-').all(p, isCIDR(p) ? cidr(self.cidr).containsCIDR(p) : !isIP(p) || cidr(self.cidr).containsIP(p)))",message="reserves addresses outside cidr; correct or remove the entry",fieldPath=".reserved"
// +kubebuilder:validation:XValidation:rule="!has(self.tenantAllocation) || has(self.addresses) || !has(self.cidr) || !isCIDR(self.cidr) || [self.tenantAllocation.start, self.tenantAllocation.end].all(a, !isIP(a) || cidr(self.cidr).containsIP(a))",message="start and end must lie inside cidr",fieldPath=".tenantAllocation"
// +kubebuilder:validation:XValidation:rule="!has(self.preAllocations) || has(self.addresses) || !has(self.cidr) || !isCIDR(self.cidr) || self.preAllocations.all(k, !isIP(self.preAllocations[k]) || cidr(self.cidr).containsIP(self.preAllocations[k]))",message="keeps an address outside cidr; choose one that is inside",fieldPath=".preAllocations"
// +kubebuilder:validation:XValidation:rule="!has(self.preAllocations) || !has(self.gateway) || self.gateway.size() == 0 || self.preAllocations.all(k, self.preAllocations[k] != self.gateway)",message="keeps the gateway for a claim; choose another address",fieldPath=".preAllocations"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || has(self.subnets) || has(self.prefix) || !has(self.cidr) || !isCIDR(self.cidr) || cidr(self.cidr).containsIP(self.gateway) || cidr('fe80::/10').containsIP(self.gateway)",messageExpression="self.gateway + ' is outside cidr ' + self.cidr + '; correct it, or, where the network is larger than cidr, set prefix to the length of the network' + (self.gateway.contains(':') ? ', describe several networks with subnets, or use a link-local gateway (fe80::/10)' : ', or describe several networks with subnets')",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || has(self.subnets) || !has(self.prefix) || self.prefix >= (self.gateway.contains(':') ? 128 : 32) || cidr('fe80::/10').containsIP(self.gateway) || [cidr(self.gateway + (self.prefix < 100 ? '/' : '/1') + '0123456789'.substring(self.prefix / 10 % 10, self.prefix < 10 ? 0 : self.prefix / 10 % 10 + 1) + '0123456789'.substring(self.prefix % 10, self.prefix % 10 + 1))].all(n, (!has(self.cidr) || !isCIDR(self.cidr) || n.containsCIDR(self.cidr)) && (!has(self.addresses) || self.addresses.all(r, r.split('-').all(p, isCIDR(p) ? n.containsCIDR(p) : !isIP(p) || n.containsIP(p)))))",messageExpression="self.gateway + ' is not in the network, as long as prefix says, of all of the addresses of the pool, such as ' + (has(self.cidr) && self.cidr.size() > 0 ? self.cidr : has(self.addresses) && self.addresses.size() > 0 ? self.addresses[0] : 'none') + '; correct prefix or gateway' + (self.gateway.contains(':') ? ', describe several networks with subnets, or use a link-local gateway (fe80::/10)' : ', or describe several networks with subnets')",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || self.gateway.size() == 0 || (has(self.cidr) && self.cidr.size() > 0) || has(self.prefix) || has(self.subnets) || !has(self.addresses) || self.addresses.all(a, a.contains('/'))",message="needs prefix: without it the network that the addresses and the gateway share is not known",fieldPath=".gateway"
type NetworkPoolSpec struct {
	// cidr is the address block of the pool, for example 10.40.0.0/21 or fd00:40::/64. A pool has
	// cidr, addresses, or both. Empty is absent.
	// +optional
	CIDR OptionalPrefix `json:"cidr,omitempty"`

	// carve has the pool take its addresses from another pool, in blocks, instead of cidr and addresses. reserved,
	// tenantAllocation and preAllocations then speak of the blocks that it has.
	// +optional
	Carve *Carve `json:"carve,omitempty"`

	// carvable lets other pools be carved from this one (spec.carve of these). Absent, none can.
	// +optional
	Carvable *Carvable `json:"carvable,omitempty"`

	// leases lets the pool give addresses to IPLeases. Absent, it gives none.
	// +optional
	Leases *Leases `json:"leases,omitempty"`

	// addresses are CIDRs (10.40.0.0/28), ranges (10.40.0.10-10.40.0.20) or single addresses
	// (10.40.0.5) that the pool hands out, beside cidr or instead of it. All are of one family.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Addresses []Range `json:"addresses,omitempty"`

	// subnets are the networks the addresses live in, where they live in several. An address takes its
	// prefix length and gateway from the smallest subnet that contains it; outside of all subnets,
	// from prefix and gateway.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(o, o.cidr == s.cidr))",message="lists one subnet twice; remove one of the two entries"
	Subnets []Subnet `json:"subnets,omitempty"`

	// prefix is the prefix length of the network the addresses live in: the short form of subnets.
	// Absent, it is that of cidr, or of the CIDR in addresses that contains the address, else that of a
	// single address, 32 or 128.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	Prefix *int32 `json:"prefix,omitempty"`

	// gateway is the gateway of the network the addresses live in: the short form of subnets. It lies
	// in that network, or is a link-local address of IPv6 (fe80::/10), and is never handed out. Where
	// prefix is 32 or 128 it may be any address. Empty is absent.
	// +optional
	Gateway OptionalAddress `json:"gateway,omitempty"`

	// reserved are addresses of the pool that are never handed out, except to a claim that
	// preAllocations names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Reserved []ReservedRange `json:"reserved,omitempty"`

	// tenantAllocation confines what is handed out to a part of the pool and sets defaults for
	// allocations without a count. Absent, the whole pool is used.
	// +optional
	TenantAllocation *TenantAllocation `json:"tenantAllocation,omitempty"`

	// network names the layer-2 or routing domain the addresses belong to. Pools of one network must
	// not overlap; the same range in two networks is two different ranges. Empty is absent.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self.size() == 0 || !format.dns1123Label().validate(self).hasValue()",message="must be a name of lower case letters, digits and hyphens, such as rack-7-storage"
	Network string `json:"network,omitempty"`

	// allowOverlap lets this pool hand out addresses although an older pool of the same network
	// has some of them too. Both may then grant the same address.
	// +optional
	AllowOverlap bool `json:"allowOverlap,omitempty"`

	// preAllocations keeps an address for claims with a given name, for example "vip": "10.40.0.10". No
	// other claimant gets it. The address lies in the pool and may be reserved; if claims get prefixes, it
	// is the first address of a prefix.
	// +optional
	// +kubebuilder:validation:MaxProperties=512
	PreAllocations PreAllocations `json:"preAllocations,omitempty"`

	// allocateReservedIPAddresses also hands out the first and last address of a subnet (IPv6: the
	// first, the subnet-router anycast address). Gateways stay excluded.
	// +optional
	AllocateReservedIPAddresses bool `json:"allocateReservedIPAddresses,omitempty"`

	// addressReuseGracePeriodSeconds is how many seconds a released address rests before it is given
	// to another claim: 0, the default, to 2592000, which is 30 days.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	AddressReuseGracePeriodSeconds *int64 `json:"addressReuseGracePeriodSeconds,omitempty"`

	// allocationPrefixLength gives each claim a whole prefix of this length instead of one address. It
	// cannot be changed, added or removed later.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	AllocationPrefixLength *int32 `json:"allocationPrefixLength,omitempty"`

	// allocationOrder is which free address a claim or a lease gets: BestFit, the default, is the lowest
	// of the smallest free block; LeastRecentlyUsed is one that was never used, else the one that was
	// released longest ago. IPAllocations are placed by best fit in any case.
	// +optional
	// +kubebuilder:validation:Enum=BestFit;LeastRecentlyUsed
	AllocationOrder AllocationOrder `json:"allocationOrder,omitempty"`
}

// AllocationOrder is the order in which free addresses are handed out.
type AllocationOrder string

const (
	// BestFitOrder hands out the lowest address of the smallest free block.
	BestFitOrder AllocationOrder = "BestFit"
	// LeastRecentlyUsedOrder hands out what was never used, then what was released longest ago.
	LeastRecentlyUsedOrder AllocationOrder = "LeastRecentlyUsed"
)

// Subnet is a network that addresses of a pool live in.
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || self.gateway.contains(':') == self.cidr.contains(':')",message="is of another address family than its subnet",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.gateway) || !isIP(self.gateway) || !isCIDR(self.cidr) || self.gateway.contains(':') != self.cidr.contains(':') || cidr(self.cidr).containsIP(self.gateway) || cidr('fe80::/10').containsIP(self.gateway)",messageExpression="self.gateway + ' is outside the subnet ' + self.cidr + '; a gateway is ' + (self.gateway.contains(':') ? 'an address of its own subnet, or link-local (fe80::/10)' : 'an address of its own subnet')",fieldPath=".gateway"
type Subnet struct {
	// cidr of the subnet.
	// +required
	CIDR Prefix `json:"cidr"`
	// gateway of the subnet: an address in it, or a link-local one of IPv6 (fe80::/10). It is never
	// handed out. Empty is absent.
	// +optional
	Gateway OptionalAddress `json:"gateway,omitempty"`
	// failureDomains are the failure domains of Machines that the subnet serves: only claims of Machines in
	// one of them get addresses of it. Absent, it serves the claims of all others.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	FailureDomains []string `json:"failureDomains,omitempty"`
}

// ReservedRange is a range that is never handed out.
// +kubebuilder:validation:XValidation:rule="has(self.addresses) != has(self.cidr)",message="needs one of addresses and cidr: set addresses"
type ReservedRange struct {
	// addresses is a CIDR (10.40.0.0/28), a range (10.40.0.10-10.40.0.20) or a single address (10.40.0.5).
	// +optional
	Addresses Range `json:"addresses,omitempty"`
	// cidr is what addresses was called before, and takes the same. Use addresses for what is not a CIDR.
	// +optional
	CIDR Range `json:"cidr,omitempty"`
	// description says what the range is kept for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`
}

// Range is what is reserved, and the field that says so.
func (r *ReservedRange) Range() (text, field string) {
	if r.Addresses == "" && r.CIDR != "" {
		return r.CIDR, "cidr"
	}
	return r.Addresses, "addresses"
}

// TenantAllocation confines what a pool hands out.
// +kubebuilder:validation:XValidation:rule="!isIP(self.start) || !isIP(self.end) || self.start.contains(':') == self.end.contains(':')",message="start and end must be of one family, IPv4 or IPv6"
// +kubebuilder:validation:XValidation:rule="!isIP(self.start) || !isIP(self.end) || self.start.contains(':') || self.end.contains(':') || [(self.start + '.' + self.end).split('.').map(o, int(o))].all(n, ((n[0] * 256 + n[1]) * 256 + n[2]) * 256 + n[3] <= ((n[4] * 256 + n[5]) * 256 + n[6]) * 256 + n[7])",message="end is before start; write the lower address as start",fieldPath=".end"
type TenantAllocation struct {
	// start is the first address that may be handed out.
	// +required
	Start Address `json:"start"`
	// end is the last address that may be handed out.
	// +required
	End Address `json:"end"`
	// defaults are the sizes of allocations that set no count.
	// +optional
	Defaults *AllocationDefaults `json:"defaults,omitempty"`
}

// AllocationDefaults are the sizes of allocations that set no count.
type AllocationDefaults struct {
	// nodesPerTenant is the count of an allocation of type nodes.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	NodesPerTenant int32 `json:"nodesPerTenant,omitempty"`
	// lbPoolPerTenant is the count of an allocation of type loadbalancer.
	// +optional
	// +kubebuilder:default=8
	// +kubebuilder:validation:Minimum=1
	LBPoolPerTenant int32 `json:"lbPoolPerTenant,omitempty"`
}
