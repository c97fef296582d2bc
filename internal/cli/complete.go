package cli

import (
	"strings"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
)

// Completion functions never fail: they offer the names that they can read.

func (p *plugin) completePools(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, namespace := p.tryConnect()
	if c == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found, _ := readPools(cmd.Context(), c, namespace)
	var out []string
	for _, obj := range found {
		if obj.GetNamespace() == "" {
			out = append(out, "gnp/"+obj.GetName())
		} else {
			out = append(out, obj.GetName())
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (p *plugin) completeExplainTargets(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	c, namespace := p.tryConnect()
	if c == nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	claims, blocks, leases := &ipamv1.IPAddressClaimList{}, &v1alpha1.IPAllocationList{}, &v1alpha1.IPLeaseList{}
	if c.List(cmd.Context(), claims, client.InNamespace(namespace)) == nil {
		for i := range claims.Items {
			out = append(out, "claim/"+claims.Items[i].Name)
		}
	}
	if c.List(cmd.Context(), blocks, client.InNamespace(namespace)) == nil {
		for i := range blocks.Items {
			out = append(out, "ipallocation/"+blocks.Items[i].Name)
		}
	}
	if c.List(cmd.Context(), leases, client.InNamespace(namespace)) == nil {
		for i := range leases.Items {
			out = append(out, "iplease/"+leases.Items[i].Name)
		}
	}
	for prefix, kind := range map[string]schema.GroupVersionKind{
		"cc/": v1alpha1.GroupVersion.WithKind(v1alpha1.ClusterCIDRKind + "List"), "node/": corev1.SchemeGroupVersion.WithKind("NodeList"),
	} {
		if !strings.HasPrefix(prefix, begun) && !strings.HasPrefix(begun, prefix) {
			continue // a cluster may have thousands of them
		}
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind)
		if c.List(cmd.Context(), list) == nil {
			for i := range list.Items {
				out = append(out, prefix+list.Items[i].Name)
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeImportSources completes the pools of other providers, in the forms that the command `import` accepts.
func (p *plugin) completeImportSources(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, namespace := p.tryConnect()
	if c == nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for prefix, kind := range map[string]schema.GroupVersionKind{
		"": incluster.GroupVersion.WithKind(incluster.IPPoolKind), "global/": incluster.GroupVersion.WithKind(incluster.GlobalIPPoolKind),
		"ippool/": m3ipamv1.GroupVersion.WithKind(migrate.Metal3IPPoolKind),
	} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
		if c.List(cmd.Context(), list, client.InNamespace(namespace)) == nil {
			for i := range list.Items {
				out = append(out, prefix+list.Items[i].Name)
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (p *plugin) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	list := &corev1.NamespaceList{}
	if c, _ := p.tryConnect(); c != nil && c.List(cmd.Context(), list) == nil {
		for i := range list.Items {
			out = append(out, list.Items[i].Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// tryConnect connects to the cluster and returns the current namespace. The client is nil where that fails.
func (p *plugin) tryConnect() (c client.Client, namespace string) {
	c, err := p.connectToCluster()
	if err != nil {
		return nil, ""
	}
	namespace, _, err = p.currentNamespace()
	if err != nil {
		return nil, ""
	}
	return c, namespace
}
