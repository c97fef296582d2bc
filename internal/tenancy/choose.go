package tenancy

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// Choose returns the ProviderConfig that a Cluster of a namespace names: the one of its own namespace, else the one
// that admits its namespace. Of several, it keeps the one that it has blocks of: a user who makes another one of the
// name, for all namespaces, takes nothing from it. Where there is none, or nothing says which, it returns what to say
// of the Cluster.
func Choose(configs []v1alpha1.ProviderConfig, name string, from Namespace, blocks []*v1alpha1.IPAllocation) (*v1alpha1.ProviderConfig, *Decision) {
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
	if len(admitted) > 1 {
		if kept := keptOf(admitted, blocks); len(kept) > 0 {
			admitted = kept
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

// keptOf are the ProviderConfigs that a Cluster has blocks of, which were made for them.
func keptOf(configs []*v1alpha1.ProviderConfig, blocks []*v1alpha1.IPAllocation) (out []*v1alpha1.ProviderConfig) {
	for _, c := range configs {
		if slices.ContainsFunc(blocks, func(a *v1alpha1.IPAllocation) bool {
			return a.Namespace == c.Namespace && a.Labels[v1alpha1.ProviderConfigLabel] == text.Shorten(c.Name, maxLabel)
		}) {
			out = append(out, c)
		}
	}
	return out
}
