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
		Short: "Say who has an address, or some of a prefix",
		Long: "Say who has an address, since when, and through which claim, machine and Cluster; or that it is reserved, resting,\n" +
			"free, or in no pool. All namespaces are looked at, or the one that --namespace names.\n\n" +
			"Of pod CIDRs it says which Node of the cluster has the address, or is about to, and what it is in the ClusterCIDRs\n" +
			"that have it. For the Nodes of a workload cluster, use its kubeconfig.",
		Example: "  kubectl butler-ipam who 10.40.0.10\n  kubectl butler-ipam who 10.41.0.16 --services\n  kubectl butler-ipam who 10.244.3.0/24",
		Args:    oneArg("which address or prefix"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := addressOf(args[0])
			if err != nil {
				return err
			}
			c, err := p.connect()
			if err != nil {
				return err
			}
			namespace, given, err := p.namespace()
			if err != nil {
				return err
			}
			if !given {
				namespace = ""
			}
			answer, err := p.who(cmd.Context(), c, namespace, a)
			if err != nil {
				return err
			}
			for i := range answer.Items {
				for j := range answer.Items[i].Holders {
					h := &answer.Items[i].Holders[j]
					if h.Object != nil {
						h.Owners, _ = ownersOf(cmd.Context(), c, h.Object) // what is known is shown
					}
					if services && h.Kind == "IPAllocation" && a.IsSingleIP() {
						p.servicesOf(cmd.Context(), c, h, a.Addr())
					}
				}
			}
			err = p.print(answer, func() string { return p.whoText(a, answer) })
			p.note(answer.Notes)
			return err
		},
	}
	cmd.Flags().BoolVar(&services, "services", false,
		"For an address of a load-balancer block, ask the workload cluster which Service has it. Needs the Secret with its kubeconfig.")
	return cmd
}

// whoAnswer is what `who` found.
type whoAnswer struct {
	Items []inspect.Standing `json:"items"`
	// Notes are what could not be looked at.
	Notes []string `json:"notes,omitempty"`
	// looked are what was looked at, as it is named where nothing was found.
	looked []string
}

// addressOf reads an address, or a prefix.
func addressOf(arg string) (netip.Prefix, error) {
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

// shownAddress is an address, or a prefix, as a person writes it.
func shownAddress(a netip.Prefix) string {
	if a.IsSingleIP() {
		return a.Addr().String()
	}
	return a.String()
}

// who looks at the pools and at the Nodes. A cluster that has no pools, or whose Nodes may not be read, is asked for the
// rest.
func (p *plugin) who(ctx context.Context, c client.Client, namespace string, a netip.Prefix) (whoAnswer, error) {
	out := whoAnswer{Items: []inspect.Standing{}}
	o, err := read(ctx, c, namespace)
	withPools := err == nil
	switch {
	case withPools:
		out.Items, out.looked = append(out.Items, inspect.Who(o, a)...), append(out.looked, "pool")
	case !meta.IsNoMatchError(err):
		return out, err
	}
	of, notes, err := readPodCIDRs(ctx, c)
	if err != nil {
		return out, err
	}
	out.Items = append(out.Items, inspect.WhoOfNodes(of, a, p.Now())...)
	switch {
	case of.Elsewhere && !withPools:
		out.Notes = append(out.Notes, "this cluster has no pools and no ClusterCIDRs; where it is a workload cluster, they are in its management cluster")
	case of.Elsewhere && of.State != nil:
		out.Notes = append(out.Notes, "this cluster has no ClusterCIDRs, and its Nodes get CIDRs of those of a management cluster")
	}
	if !of.Elsewhere && !of.RangesHidden {
		out.looked = append(out.looked, "ClusterCIDR")
	}
	if !of.NodesHidden {
		out.looked = append(out.looked, "pod CIDR of a Node")
	}
	out.Notes = append(out.Notes, notes...)
	return out, nil
}

func (p *plugin) whoText(a netip.Prefix, answer whoAnswer) string {
	if len(answer.Items) == 0 {
		if len(answer.looked) == 0 {
			return fmt.Sprintf("Who has %s cannot be seen.\n", shownAddress(a))
		}
		return fmt.Sprintf("%s is in no %s.\n", shownAddress(a), strings.Join(answer.looked, ", no "))
	}
	var out strings.Builder
	for i, s := range answer.Items {
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "%s is %s", shownAddress(a), p.bold(s.State))
		if s.Pool != "" {
			out.WriteString(" in " + s.Pool)
		}
		if s.Detail != "" {
			out.WriteString(": " + word(s.Detail))
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
			t.add("  "+h.Kind, name)
			if h.Since != nil {
				t.add("  since", p.since(*h.Since))
			}
			for _, o := range h.Owners {
				t.add("  "+o.Kind, o.Name)
			}
			if h.Cluster != "" && !slices.ContainsFunc(h.Owners, func(o inspect.Owner) bool { return o.Kind == "Cluster" }) {
				t.add("  Cluster", h.Cluster)
			}
			for _, s := range h.Services {
				t.add("  Service", s)
			}
			out.WriteString(t.String())
		}
		t := &table{}
		for _, u := range s.Clusters {
			t.add("  Cluster", u.Cluster, text.Count(u.Nodes, "Node", "Nodes"), fmt.Sprintf("%d free", u.Free))
		}
		out.WriteString(t.String())
		if s.Do != "" {
			fmt.Fprintf(&out, "  to do    %s\n", word(s.Do))
		}
	}
	return out.String()
}

// maxOwners bounds how far up owners are followed.
const maxOwners = 8

// ownersOf follows the owners of an object upwards, the controller where there are several, to the Cluster or to
// what cannot be read, and is returned with the reason.
func ownersOf(ctx context.Context, from client.Client, obj metav1.Object) (out []inspect.Owner, unread error) {
	for obj != nil && len(out) < maxOwners {
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

// servicesOf asks the Cluster of a block which Services have an address. That it does not answer is said, and no
// failure: the rest of the answer stands.
func (p *plugin) servicesOf(ctx context.Context, from client.Client, h *inspect.Holder, a netip.Addr) {
	services, err := tenantServices(ctx, from, h.Cluster, a)
	if err != nil {
		fmt.Fprintf(p.ErrOut, "%s the Services of Cluster %s cannot be read: %v\n", p.yellow("warning:"), h.Cluster, err)
	}
	h.Services = services
}

// tenantTimeout bounds the wait for the API server of a workload cluster.
const tenantTimeout = 15 * time.Second

func tenantServices(ctx context.Context, from client.Client, cluster string, a netip.Addr) (out []string, err error) {
	namespace, name, _ := strings.Cut(cluster, "/")
	cfg, err := kubeconfig.ConfigOf(ctx, from, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	cfg.Timeout = tenantTimeout
	tenant, err := clientFor(cfg)
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
