// Package balancer is what the load balancers of workload clusters have in common for whoever shows them blocks:
// internal/metallb and internal/cilium are two. What is to be done is decided in internal/elastic and internal/demand.
package balancer

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// FieldOwner of what is applied.
	FieldOwner = client.FieldOwner("butler-controller/ipam")
	// ManagedLabel is on the pools that show blocks, with the value ManagedValue.
	ManagedLabel = "app.kubernetes.io/managed-by"
	// ManagedValue is this project.
	ManagedValue = "cluster-api-ipam-provider-butler"
)
