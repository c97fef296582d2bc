// Package metallb reads the Services and address pools of a workload cluster, projects to its MetalLB the blocks that
// it may use, and checks whether MetalLB has released one. internal/elastic decides what to do.
package metallb

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Namespace is the namespace of MetalLB's objects.
	Namespace = "metallb-system"
	// DefaultPool is the name of the IPAddressPool that contains all blocks, unless each block has a pool of its own.
	// The L2Advertisement that announces them has the same name.
	DefaultPool = "default-pool"
	// ReturnedFieldOwner is the field owner of the patch that returns an object to the owner that handed it over:
	// then none of its fields is ours.
	ReturnedFieldOwner = client.FieldOwner("butler-controller/returned")
)
