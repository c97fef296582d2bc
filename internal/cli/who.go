package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/kubeconfig"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

func (p *plugin) whoCommand() *cobra.Command {
	var services bool
	cmd := &cobra.Command{
		Use:   "who ADDRESS|PREFIX",
		Short: "Show which object has an address, or some of a prefix",
		Long: "Show which object has an address, since when, and through which claim, machine and Cluster; or that it is reserved, resting,\n" +
			"free, or in no pool. All namespaces are searched, or the one that --namespace names.\n\n" +
			"For pod CIDRs it shows which Node of the cluster has the address, or is about to, and what it is in the ClusterCIDRs\n" +
			"that have it. For the Nodes of a workload cluster, use its kubeconfig.",
		Example: "  kubectl butler-ipam who 10.40.0.10\n  kubectl butler-ipam who 10.41.0.16 --services\n  kubectl butler-ipam who 10.244.3.0/24",
		Args:    exactlyOneArg("which address or prefix"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := parseAddressOrPrefix(args[0])
			if err != nil {
				return err
			}
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			namespace, explicit, err := p.currentNamespace()
			if err != nil {
				return err
			}
			if !explicit {
				namespace = ""
			}
			answer, err := p.findHolders(cmd.Context(), c, namespace, a)
			if err != nil {
				return err
			}
			for i := range answer.Items {
				for j := range answer.Items[i].Holders {
					h := &answer.Items[i].Holders[j]
					if h.Object != nil {
						h.Owners, _ = resolveOwners(cmd.Context(), c, h.Object) // an error leaves the owners that were found
					}
					if services && h.Kind == "IPAllocation" && a.IsSingleIP() {
						p.setHolderServices(cmd.Context(), c, h, a.Addr())
					}
				}
			}
			err = p.printOutput(answer, func() string { return p.formatWhoResult(a, answer) })
			p.printNotes(answer.Notes)
			return err
		},
	}
	cmd.Flags().BoolVar(&services, "services", false,
		"For an address of a load-balancer block, ask the workload cluster which Service has it. Needs the Secret with its kubeconfig.")
	return cmd
}

// whoResult is the result of the command `who`.
type whoResult struct {
	Items []inspect.AddressStatus `json:"items"`
	// Notes name the objects that could not be read.
	Notes []string `json:"notes,omitempty"`
	// searchedKinds lists the kinds that were searched, as the output names them where nothing was found.
	searchedKinds []string
}

// parseAddressOrPrefix parses an address or a prefix. It returns an address as a prefix of full length.
func parseAddressOrPrefix(arg string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(arg); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(arg)
	if err != nil {
		return p, fmt.Errorf("%q is not an address or a prefix, such as 10.40.0.10, fd00::10 or 10.244.3.0/24", arg)
	}
	return p.Masked(), nil
}

// formatAddressOrPrefix formats an address or a prefix the way a user writes it.
func formatAddressOrPrefix(a netip.Prefix) string {
	if a.IsSingleIP() {
		return a.Addr().String()
	}
	return a.String()
}

// findHolders searches the pools and the Nodes for an address or prefix. A cluster without pools, or one whose Nodes
// the user may not list, is searched for the rest.
func (p *plugin) findHolders(ctx context.Context, c client.Client, namespace string, a netip.Prefix) (whoResult, error) {
	out := whoResult{Items: []inspect.AddressStatus{}}
	o, err := readObjects(ctx, c, namespace)
	withPools := err == nil
	switch {
	case withPools:
		out.Items, out.searchedKinds = append(out.Items, inspect.DescribeAddress(o, a)...), append(out.searchedKinds, "pool")
	case !meta.IsNoMatchError(err):
		return out, err
	}
	of, notes, err := readPodCIDRs(ctx, c)
	if err != nil {
		return out, err
	}
	out.Items = append(out.Items, inspect.DescribePodCIDR(of, a, p.Now())...)
	switch {
	case of.ManagedElsewhere && !withPools:
		out.Notes = append(out.Notes, "this cluster has no pools and no ClusterCIDRs; where it is a workload cluster, they are in its management cluster")
	case of.ManagedElsewhere && of.FenceState != nil:
		out.Notes = append(out.Notes, "this cluster has no ClusterCIDRs, and its Nodes get CIDRs of those of a management cluster")
	}
	if !of.ManagedElsewhere && !of.RangesHidden {
		out.searchedKinds = append(out.searchedKinds, "ClusterCIDR")
	}
	if !of.NodesHidden {
		out.searchedKinds = append(out.searchedKinds, "pod CIDR of a Node")
	}
	out.Notes = append(out.Notes, notes...)
	return out, nil
}

func (env Env) formatWhoResult(a netip.Prefix, answer whoResult) string {
	if len(answer.Items) == 0 {
		if len(answer.searchedKinds) == 0 {
			return fmt.Sprintf("The holder of %s cannot be determined.\n", formatAddressOrPrefix(a))
		}
		return fmt.Sprintf("%s is in no %s.\n", formatAddressOrPrefix(a), strings.Join(answer.searchedKinds, ", no "))
	}
	var out strings.Builder
	for i, s := range answer.Items {
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "%s is %s", formatAddressOrPrefix(a), env.bold(s.State))
		if s.Pool != "" {
			out.WriteString(" in " + s.Pool)
		}
		if s.Detail != "" {
			out.WriteString(": " + sanitizeLine(s.Detail))
		}
		out.WriteString("\n")
		for _, h := range s.Holders {
			t := &table{}
			name := h.Name
			if h.Namespace != "" {
				name = h.Namespace + "/" + name
			}
			if h.Range != "" {
				name += ", " + h.Range
			}
			t.addRow("  "+h.Kind, name)
			if h.Since != nil {
				t.addRow("  since", env.formatSince(*h.Since))
			}
			for _, o := range h.Owners {
				t.addRow("  "+o.Kind, o.Name)
			}
			if h.Cluster != "" && !slices.ContainsFunc(h.Owners, func(o inspect.Owner) bool { return o.Kind == "Cluster" }) {
				t.addRow("  Cluster", h.Cluster)
			}
			for _, s := range h.Services {
				t.addRow("  Service", s)
			}
			out.WriteString(t.String())
		}
		t := &table{}
		for _, u := range s.Clusters {
			t.addRow("  Cluster", u.Cluster, text.FormatCount(u.Nodes, "Node", "Nodes"), fmt.Sprintf("%d free", u.Free))
		}
		out.WriteString(t.String())
		if s.Advice != "" {
			fmt.Fprintf(&out, "  to do    %s\n", sanitizeLine(s.Advice))
		}
	}
	return out.String()
}

// maxOwnerDepth limits how many levels of owners are followed.
const maxOwnerDepth = 8

// resolveOwners follows the owners of an object upwards, and the controller where an object has several, until it
// reaches a Cluster or an object that cannot be read. It returns the owners found so far, and as unread the error of
// that read.
func resolveOwners(ctx context.Context, from client.Client, obj metav1.Object) (out []inspect.Owner, unread error) {
	for obj != nil && len(out) < maxOwnerDepth {
		refs := obj.GetOwnerReferences()
		if len(refs) == 0 {
			return out, nil
		}
		ref := refs[0]
		if i := slices.IndexFunc(refs, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller }); i >= 0 {
			ref = refs[i]
		}
		namespace := obj.GetNamespace()
		out = append(out, inspect.Owner{Kind: ref.Kind, Name: namespace + "/" + ref.Name})
		next := &metav1.PartialObjectMetadata{}
		next.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
		if ref.Kind == "Cluster" {
			return out, nil
		}
		if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, next); err != nil {
			return out, err
		}
		obj = next
	}
	return out, nil
}

// setHolderServices sets the Services of a holder from the workload cluster of its block. Where that cluster does not
// answer, a warning is printed and the rest of the answer is kept.
func (p *plugin) setHolderServices(ctx context.Context, from client.Client, h *inspect.Holder, a netip.Addr) {
	services, err := listTenantServices(ctx, from, h.Cluster, a)
	if err != nil {
		fmt.Fprintf(p.ErrOut, "%s the Services of Cluster %s cannot be read: %v\n", p.yellow("warning:"), h.Cluster, err)
	}
	h.Services = services
}

// tenantTimeout limits the wait for the API server of a workload cluster.
const tenantTimeout = 15 * time.Second

func listTenantServices(ctx context.Context, from client.Client, cluster string, a netip.Addr) (out []string, err error) {
	namespace, name, _ := strings.Cut(cluster, "/")
	cfg, err := kubeconfig.RESTConfigForCluster(ctx, from, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	cfg.Timeout = tenantTimeout
	tenant, err := newClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	list := &corev1.ServiceList{}
	if err := tenant.List(ctx, list); err != nil {
		return nil, err
	}
	for i := range list.Items {
		s := &list.Items[i]
		for _, in := range s.Status.LoadBalancer.Ingress {
			if ip, err := netip.ParseAddr(in.IP); err == nil && ip.Unmap() == a {
				out = append(out, s.Namespace+"/"+s.Name)
			}
		}
	}
	return out, nil
}
