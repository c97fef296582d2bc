package tenancy

import (
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// unread names the settings that are there for Butler's own controllers and have no effect here, to end the message of
// Ready; empty where none is set. Gateways and networks of machines are the pools'.
func unread(network v1alpha1.ProviderNetwork) string {
	if network.Mode != v1alpha1.IPAMMode {
		return "" // they are for Butler
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
