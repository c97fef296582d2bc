// Package balancer contains what the load balancers of workload clusters have in common for the code that projects
// blocks to them: internal/metallb and internal/cilium implement it. internal/elastic and internal/demand decide what
// to do.
package balancer

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// FieldOwner is the field owner of server-side apply.
	FieldOwner = client.FieldOwner("butler-controller/ipam")
	// ManagedByLabel is on the pools that contain blocks, with the value ManagedByValue.
	ManagedByLabel = "app.kubernetes.io/managed-by"
	// ManagedByValue identifies this project.
	ManagedByValue = "cluster-api-ipam-provider-butler"
)
