package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxCarvedBlocks is how many blocks a carved pool has at most: status.blocks lists all of them.
const MaxCarvedBlocks = 128

// Carve has a pool take its addresses from another pool, its parent, in blocks of one size.
type Carve struct {
	// poolRef names the parent: a GlobalNetworkPool or, for a NetworkPool, a NetworkPool of its namespace. The parent
	// has to allow it (spec.carvable).
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable, because blocks and addresses of this parent are in use; make a new pool"
	PoolRef PoolReference `json:"poolRef"`
	// prefixLength is that of each block, for example 26. Another length applies to blocks that are carved later.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	PrefixLength int32 `json:"prefixLength"`
	// blocks are how many blocks the pool has.
	// +optional
	// +kubebuilder:default={min: 1, max: 16}
	Blocks CarvedBlocks `json:"blocks,omitempty"`
	// minAvailable has the pool grow before it is full: as soon as fewer addresses than this can be handed out. 0, the
	// default, lets it grow when a claim waits.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinAvailable int32 `json:"minAvailable,omitempty"`
	// network says which network the addresses live in. Parent, the default: prefix and gateway are those that the
	// parent gives its addresses, all blocks are in one layer-2 network. Routed: each block is a subnet of its own.
	// +optional
	// +kubebuilder:default=Parent
	Network CarvedNetwork `json:"network,omitempty"`
	// gateway says which address of a block is its gateway, where network is Routed: the First one that hosts can use,
	// or the Last.
	// +optional
	// +kubebuilder:default=First
	Gateway CarvedGateway `json:"gateway,omitempty"`
}

// CarvedBlocks are how many blocks a carved pool has.
// +kubebuilder:validation:XValidation:rule="self.min <= self.max",message="min is larger than max"
type CarvedBlocks struct {
	// min blocks are carved at once, and kept.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=128
	Min int32 `json:"min"`
	// max is how many blocks the pool grows to. A block above min that nothing has used for the time of --shrink-grace
	// is deleted.
	// +optional
	// +kubebuilder:default=16
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	Max int32 `json:"max"`
}

// CarvedNetwork says which network the addresses of a carved pool live in.
// +kubebuilder:validation:Enum=Parent;Routed
type CarvedNetwork string

const (
	// ParentNetwork is that of the parent.
	ParentNetwork CarvedNetwork = "Parent"
	// RoutedNetwork is each block's own.
	RoutedNetwork CarvedNetwork = "Routed"
)

// CarvedGateway says which address of a block is its gateway.
// +kubebuilder:validation:Enum=First;Last
type CarvedGateway string

const (
	// FirstGateway is the first address that hosts can use.
	FirstGateway CarvedGateway = "First"
	// LastGateway is the last address that hosts can use.
	LastGateway CarvedGateway = "Last"
)

// Carvable lets other pools be carved from a pool.
type Carvable struct {
	// maxBlocksPerNamespace is how many blocks the pools of one namespace may have of this pool. Absent: any number.
	// Blocks of GlobalNetworkPools do not count.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxBlocksPerNamespace *int32 `json:"maxBlocksPerNamespace,omitempty"`
	// prefixLengths are those that blocks may have. Absent: any.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Minimum=1
	// +kubebuilder:validation:items:Maximum=128
	PrefixLengths []int32 `json:"prefixLengths,omitempty"`
}

// CarvedBlock is a block that a carved pool has open: addresses are granted from it.
type CarvedBlock struct {
	// range is the block as a CIDR.
	// +required
	Range string `json:"range"`
	// allocation is the name of the IPAllocation that has the block.
	// +required
	Allocation string `json:"allocation"`
	// uid is that of the IPAllocation.
	// +required
	UID string `json:"uid"`
	// prefix is the prefix length of the network that the addresses live in.
	// +required
	Prefix int32 `json:"prefix"`
	// gateway of that network.
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// inUse is the number of addresses of the block that are in use or granted.
	// +required
	InUse int64 `json:"inUse"`
	// draining means that nothing more is granted from the block; it is deleted when nothing of it is in use.
	// +optional
	Draining bool `json:"draining,omitempty"`
	// idleSince is when the last address of the block was released.
	// +optional
	IdleSince *metav1.Time `json:"idleSince,omitempty"`
}
