// Package metallb reads what the Services and address pools of a workload cluster are, shows its MetalLB the
// blocks that it may use, and finds out whether it has let go of one. What is to be done is decided in
// internal/elastic.
package metallb

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Namespace of MetalLB's objects.
	Namespace = "metallb-system"
	// DefaultPool is the IPAddressPool that has all blocks, unless each has one of its own. The
	// L2Advertisement that announces them has the same name.
	DefaultPool = "default-pool"
	// FieldReturner gives fields back to whoever handed an object over: none of them is ours then.
	FieldReturner = client.FieldOwner("butler-controller/returned")
)
