package nodeipam

// servedCluster is the cluster that the allocator serves. Only hasPeerAllocator changes, and never back.
type servedCluster struct {
	// inFleet reports whether the Nodes are those of a Cluster, called name, by whose labels objects are selected.
	inFleet bool
	name    string
	// hasPeerAllocator reports whether another allocator of the cluster has held its ConfigMap: that of its Cluster, or
	// of the manager in it.
	hasPeerAllocator bool
}
