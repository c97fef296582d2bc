// Package endpoint decides which address of a pool the control plane of a Cluster gets, and how the templates of its
// ClusterClass are patched with it. It reads and writes nothing.
package endpoint
