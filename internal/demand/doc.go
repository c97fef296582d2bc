// Package demand decides on the load-balancer blocks of a Cluster in one reconcile: what is projected to the Cluster,
// what is requested from the pools, and which condition is set. It combines internal/elastic, which models Services
// and addresses, and internal/tenancy, which models pools and IPAllocations. The package is pure: its input is what
// the caller has read, its output is what the caller writes.
package demand
