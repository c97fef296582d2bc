// Package incluster knows the pools of the in-cluster IPAM provider
// (sigs.k8s.io/cluster-api-ipam-provider-in-cluster, API v1alpha2), as far as another manager takes its place: each
// of them is mirrored by a pool of ours, which has the ledger and the record of grants. The mirror has the name
// of the pool and a suffix, in the same namespace.
package incluster
