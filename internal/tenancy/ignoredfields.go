package tenancy

import (
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// ignoredSettingsMessage returns a suffix for the message of the condition Ready that names the settings that exist
// for Butler's own controllers and have no effect here; empty if none is set. Gateways and networks of machines come
// from the pools.
func ignoredSettingsMessage(network v1alpha1.ProviderNetwork) string {
	if network.Mode != v1alpha1.IPAMMode {
		return "" // Butler uses them.
	}
	var set []string
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"subnet", network.Subnet != ""},
		{"gateway", network.Gateway != ""},
		{"dnsServers", len(network.DNSServers) > 0},
		{"timeServers", len(network.TimeServers) > 0},
	} {
		if field.set {
			set = append(set, "network."+field.name)
		}
	}
	if len(set) == 0 {
		return ""
	}
	return "; without effect here: " + strings.Join(set, ", ") + " (machines get prefix and gateway from the pool of their claims)"
}
