package tenancy

import (
	"fmt"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Choose returns the ProviderConfig that a Cluster of a namespace names: the one of its own namespace, else the one
// that admits its namespace. Where there is none, or more than one of them, it returns what to say of the Cluster.
func Choose(configs []v1alpha1.ProviderConfig, name string, from Namespace) (*v1alpha1.ProviderConfig, *Decision) {
	var admitted []*v1alpha1.ProviderConfig
	denied := ""
	for i := range configs {
		config := &configs[i]
		if config.Name != name {
			continue
		}
		if config.Namespace == from.Name {
			return config, nil
		}
		if a := Admits(config, from); a.Allowed {
			admitted = append(admitted, config)
		} else {
			denied = a.Message
		}
	}
	switch {
	case len(admitted) == 1:
		return admitted[0], nil
	case len(admitted) > 1:
		return nil, &Decision{Reason: v1alpha1.ValidationFailedReason, Message: fmt.Sprintf(
			"ProviderConfig %s exists in the namespaces %s and %s, and both serve this Cluster; delete one, or create it again under another name", name, admitted[0].Namespace, admitted[1].Namespace)}
	case denied != "":
		return nil, &Decision{Reason: v1alpha1.AccessDeniedReason, Message: denied}
	}
	return nil, &Decision{Reason: v1alpha1.NetworkNotReadyReason, Message: fmt.Sprintf(
		"ProviderConfig %s does not exist; create it or correct the label %s", name, v1alpha1.ProviderConfigLabel)}
}
