package tenancy

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestSettingsWithoutEffectAreNamed checks that settings without effect are named in the condition Ready, where users
// look for the effect.
func TestSettingsWithoutEffectAreNamed(t *testing.T) {
	pools := []Pool{{Ref: newPoolRef("p"), Availability: PoolOpen, LargestFreeBlock: 99}}
	plain := v1alpha1.ProviderNetwork{Mode: v1alpha1.IPAMMode}
	if got := ValidateNetwork(plain, pools).Ready.Message; strings.Contains(got, "without effect") {
		t.Errorf("nothing is set: %s", got)
	}
	plain.Subnet, plain.Gateway, plain.DNSServers = "VM Network", "10.0.0.1", []string{"10.0.0.2"}
	v := ValidateNetwork(plain, pools)
	if !strings.Contains(v.Ready.Message, "; without effect here: network.subnet, network.gateway, network.dnsServers (") || v.Ready.Status != "True" {
		t.Errorf("%+v", v.Ready)
	}
	if strings.Contains(v.PoolAvailable.Message, "without effect") {
		t.Errorf("%+v", v.PoolAvailable)
	}
}
