// Package incluster defines the pools of the in-cluster IPAM provider
// (sigs.k8s.io/cluster-api-ipam-provider-in-cluster, API v1alpha2), as far as another manager needs them to serve in
// its place. A pool of ours, the mirror, mirrors each of them, and has the ledger and the record of grants. The mirror
// has the name of the pool and a suffix, in the same namespace.
package incluster
