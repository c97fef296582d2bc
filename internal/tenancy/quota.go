package tenancy

import "github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"

// NodeQuota is how many addresses for machines a Cluster may have; false: any number.
func NodeQuota(network v1alpha1.ProviderNetwork) (limit int64, limited bool) {
	q := network.QuotaPerTenant
	if network.Mode != v1alpha1.IPAMMode || q == nil || q.MaxNodeIPs == nil {
		return 0, false
	}
	return int64(*q.MaxNodeIPs), true
}
