// Package lookup finds which object names which: the ProviderConfig of a Cluster, the pools of a ProviderConfig, the
// Clusters that wait for a pool, the IPAllocations of a Cluster. It reads, and writes nothing.
package lookup
