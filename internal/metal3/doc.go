// Package metal3 translates IPPools of Metal3's IPAM (github.com/metal3-io/ip-address-manager, API v1alpha1) to specs
// of our pools, for the import.
package metal3
