// Package metal3 knows the pools of Metal3's IPAM (github.com/metal3-io/ip-address-manager, API v1alpha1), as far as they
// are imported: what of an IPPool a pool of ours can say.
package metal3
