// Package endpoint decides which address of a pool the control plane of a Cluster has, and what becomes of the templates
// of its ClusterClass with it. It reads and writes nothing.
package endpoint
