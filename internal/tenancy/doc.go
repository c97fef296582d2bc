// Package tenancy decides what a Cluster gets from the pools of a ProviderConfig: how many addresses, from which
// pool, under which block name, and which conditions the Cluster gets. The package is pure: it has no client, no
// clock and no state. Its inputs are objects that the caller has read from the API server; its results are what the
// caller writes there.
package tenancy
