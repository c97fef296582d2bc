module github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/testdata/providers

go 1.26.0

// The infrastructure providers whose machine templates name pools, and Metal3's IPAM, for their CRDs. Nothing is built of them, so go.sum
// has these modules alone, and not what they require.
require (
	github.com/ionos-cloud/cluster-api-provider-proxmox v0.9.0
	github.com/metal3-io/cluster-api-provider-metal3 v1.13.2
	github.com/metal3-io/ip-address-manager v1.13.1
	sigs.k8s.io/cluster-api-provider-openstack v0.14.7
	sigs.k8s.io/cluster-api-provider-vsphere v1.16.1
)
