package tenancy

import (
	"fmt"
	"slices"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// ChooseProviderConfig returns the ProviderConfig that a Cluster of a namespace names: the one in its own namespace,
// else the one that admits its namespace. If several admit it, the Cluster keeps the one that it has blocks of, so
// that a user who creates another ProviderConfig of that name for all namespaces does not affect it. If there is
// none, or the choice is ambiguous, it returns the decision for the conditions of the Cluster instead.
func ChooseProviderConfig(configs []v1alpha1.ProviderConfig, name string, from Namespace, blocks []*v1alpha1.IPAllocation) (*v1alpha1.ProviderConfig, *Decision) {
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
		if a := AdmitsNamespace(config, from); a.Allowed {
			admitted = append(admitted, config)
		} else {
			denied = a.Message
		}
	}
	if len(admitted) > 1 {
		if kept := configsWithBlocks(admitted, blocks); len(kept) > 0 {
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

// configsWithBlocks returns the ProviderConfigs that a block of the Cluster was created for.
func configsWithBlocks(configs []*v1alpha1.ProviderConfig, blocks []*v1alpha1.IPAllocation) (out []*v1alpha1.ProviderConfig) {
	for _, c := range configs {
		if slices.ContainsFunc(blocks, func(a *v1alpha1.IPAllocation) bool {
			return a.Namespace == c.Namespace && a.Labels[v1alpha1.ProviderConfigLabel] == text.ShortenText(c.Name, maxLabelLength)
		}) {
			out = append(out, c)
		}
	}
	return out
}
