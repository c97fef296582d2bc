package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reservation is the result of the command `reserve`.
type reservation struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pool      string `json:"pool"`
	Address   string `json:"address"`
	Prefix    *int32 `json:"prefix,omitempty"`
	Gateway   string `json:"gateway,omitempty"`
}

func (p *plugin) reserveCommand() *cobra.Command {
	var pool, address, cluster string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reserve NAME --pool POOL",
		Short: "Reserve an address of a pool, and print it",
		Long: "Create an IPAddressClaim of a pool, wait until it has its address, and print that. A claim of the name that is there is used:\n" +
			"the command can be repeated, and prints the same address again. The address is reserved until the claim is deleted.\n\n" +
			"With --cluster the claim belongs to a Cluster that exists: it is deleted with it, and moves with it. That can be said later,\n" +
			"with the same command, as the address is needed to write the Cluster.",
		Example: "  export CONTROL_PLANE_ENDPOINT_IP=$(kubectl butler-ipam reserve prod-control-plane --pool machines)\n" +
			"  kubectl butler-ipam reserve prod-control-plane --pool machines --cluster prod",
		Args: exactlyOneArg("the name of the claim"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if address != "" {
				if _, err := netip.ParseAddr(address); err != nil {
					return fmt.Errorf("--address: %q is not an address, such as 10.40.0.5 or fd00::5", address)
				}
			}
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			claim, err := p.buildReserveClaim(cmd.Context(), c, args[0], pool, address)
			if err != nil {
				return err
			}
			if claim, err = ensureClaim(cmd.Context(), c, claim, cluster); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			claim, err = waitForAddress(ctx, c, claim)
			if err != nil {
				return p.reportReserveFailure(claim, err)
			}
			found, err := readReservation(cmd.Context(), c, claim)
			if err != nil {
				return err
			}
			if address != "" && netip.MustParseAddr(address) != netip.MustParseAddr(found.Address) {
				return fmt.Errorf("IPAddressClaim %s/%s has had %s before: delete it, or reserve %s under another name", claim.Namespace, claim.Name, found.Address, address)
			}
			return p.printOutput(found, func() string { return found.Address + "\n" })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVar(&pool, "pool", "", "The pool: the name of a NetworkPool of the namespace, gnp/NAME for a GlobalNetworkPool, or inclusterippool/NAME or another kind of the in-cluster provider.")
	cmd.Flags().StringVar(&address, "address", "", "The address that is wanted, rather than any.")
	cmd.Flags().StringVar(&cluster, "cluster", "", "The Cluster of the namespace that the claim is to belong to.")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "How long to wait for the address.")
	_ = cmd.MarkFlagRequired("pool")
	_ = cmd.RegisterFlagCompletionFunc("pool", p.completePools)
	return cmd
}

// waitForAddress waits until a claim has its address. It returns the claim as last seen, and an error if the claim is
// being deleted or ctx ends.
func waitForAddress(ctx context.Context, c client.WithWatch, claim *ipamv1.IPAddressClaim) (*ipamv1.IPAddressClaim, error) {
	one := func(o metav1.ListOptions) *client.ListOptions {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, claim.Name).String()
		return &client.ListOptions{Namespace: claim.Namespace, Raw: &o}
	}
	from := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &ipamv1.IPAddressClaimList{}
			return list, c.List(ctx, list, one(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, &ipamv1.IPAddressClaimList{}, one(o))
		},
	}
	_, err := watchtools.UntilWithSync(ctx, from, &ipamv1.IPAddressClaim{}, nil, func(e watch.Event) (bool, error) {
		current, ok := e.Object.(*ipamv1.IPAddressClaim)
		if !ok {
			return false, nil
		}
		claim = current
		if e.Type == watch.Deleted || !current.DeletionTimestamp.IsZero() {
			return false, fmt.Errorf("IPAddressClaim %s/%s is being deleted", current.Namespace, current.Name)
		}
		return current.Status.AddressRef.Name != "", nil
	})
	return claim, err
}

// readReservation reads the address of a claim.
func readReservation(ctx context.Context, c client.Reader, claim *ipamv1.IPAddressClaim) (reservation, error) {
	a := &ipamv1.IPAddress{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: claim.Namespace, Name: claim.Status.AddressRef.Name}, a); err != nil {
		return reservation{}, fmt.Errorf("reading the IPAddress of the claim: %w", err)
	}
	return reservation{
		Namespace: claim.Namespace, Name: claim.Name, Pool: claim.Spec.PoolRef.Kind + " " + claim.Spec.PoolRef.Name,
		Address: a.Spec.Address, Prefix: a.Spec.Prefix, Gateway: a.Spec.Gateway,
	}, nil
}

// reportReserveFailure prints to the error stream why a claim has no address. Standard output stays empty, as scripts
// read the address there.
func (p *plugin) reportReserveFailure(claim *ipamv1.IPAddressClaim, err error) error {
	if !wait.Interrupted(err) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	why := "no manager has reconciled it: does one run, and does it serve this namespace?"
	if ready := meta.FindStatusCondition(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition); ready != nil {
		why = ready.Reason + ": " + ready.Message
	}
	fmt.Fprintf(p.ErrOut, "IPAddressClaim %s/%s waits: %s\nIt gets its address when it can. If you do not want it, delete it: kubectl delete ipaddressclaim -n %s %s\n",
		claim.Namespace, claim.Name, why, claim.Namespace, claim.Name)
	return errNegativeResult
}
