package cli

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/inspect"
)

func (p *plugin) whoCommand() *cobra.Command {
	var services bool
	cmd := &cobra.Command{
		Use:   "who ADDRESS",
		Short: "Say who has an address",
		Long: "Say who has an address, since when, and through which claim, machine and Cluster; or that it is reserved, resting,\n" +
			"free, or in no pool. All namespaces are looked at, or the one that --namespace names.",
		Example: "  kubectl butler-ipam who 10.40.0.10\n  kubectl butler-ipam who 10.41.0.16 --services",
		Args:    oneArg("which address"),
		RunE: func(cmd *cobra.Command, args []string) error {
			a, err := netip.ParseAddr(args[0])
			if err != nil || a.Zone() != "" {
				return fmt.Errorf("%q is not an address, such as 10.40.0.10 or fd00::10", args[0])
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
			o, err := read(cmd.Context(), c, namespace)
			if err != nil {
				return err
			}
			found := inspect.Who(o, a.Unmap())
			for i := range found {
				for j := range found[i].Holders {
					h := &found[i].Holders[j]
					h.Owners = ownersOf(cmd.Context(), c, h.Object)
					if services && h.Kind == "IPAllocation" {
						p.servicesOf(cmd.Context(), c, h, a.Unmap())
					}
				}
			}
			return p.print(items[inspect.Standing]{found}, func() string { return p.whoText(a.Unmap(), found) })
		},
	}
	cmd.Flags().BoolVar(&services, "services", false,
		"For an address of a load-balancer block, ask the workload cluster which Service has it. Needs the Secret with its kubeconfig.")
	return cmd
}

func (p *plugin) whoText(a netip.Addr, found []inspect.Standing) string {
	if len(found) == 0 {
		return fmt.Sprintf("%s is in no pool.\n", a)
	}
	var out strings.Builder
	for i, s := range found {
		if i > 0 {
			out.WriteString("\n")
		}
		fmt.Fprintf(&out, "%s is %s in %s", a, p.bold(s.State), s.Pool)
		if s.Detail != "" {
			out.WriteString(": " + s.Detail)
		}
		out.WriteString("\n")
		for _, h := range s.Holders {
			t := &table{}
			name := h.Namespace + "/" + h.Name
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
	}
	return out.String()
}

// maxOwners bounds how far up owners are followed.
const maxOwners = 8

// ownersOf follows the owners of an object upwards, the controller where there are several, to the Cluster or to
// what cannot be read.
func ownersOf(ctx context.Context, from client.Client, obj metav1.Object) (out []inspect.Owner) {
	for obj != nil && len(out) < maxOwners {
		refs := obj.GetOwnerReferences()
		if len(refs) == 0 {
			return out
		}
		ref := refs[0]
		if i := slices.IndexFunc(refs, func(r metav1.OwnerReference) bool { return r.Controller != nil && *r.Controller }); i >= 0 {
			ref = refs[i]
		}
		namespace := obj.GetNamespace()
		out = append(out, inspect.Owner{Kind: ref.Kind, Name: namespace + "/" + ref.Name})
		next := &metav1.PartialObjectMetadata{}
		next.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
		if ref.Kind == "Cluster" || from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, next) != nil {
			return out
		}
		obj = next
	}
	return out
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

func tenantServices(ctx context.Context, from client.Client, cluster string, a netip.Addr) (out []string, err error) {
	namespace, name, _ := strings.Cut(cluster, "/")
	credentials := &corev1.Secret{}
	if err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: secret.Name(name, secret.Kubeconfig)}, credentials); err != nil {
		return nil, err
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(credentials.Data[secret.KubeconfigDataName])
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig in its Secret: %w", err)
	}
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
