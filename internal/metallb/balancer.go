package metallb

import (
	"context"

	metallbv1beta1 "go.universe.tf/metallb/api/v1beta1"
	"go4.org/netipx"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/balancer"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/elastic"
)

// Balancer is MetalLB, for whoever shows blocks to any load balancer.
type Balancer struct{}

var _ balancer.Balancer = Balancer{}

// Name implements balancer.Balancer, as all of these do.
func (Balancer) Name() string { return "MetalLB" }

// Pool is Butler's, and that of many guides to MetalLB.
func (Balancer) Pool() string { return DefaultPool }

// Watched are read in MetalLB's namespace alone.
func (Balancer) Watched() ([]client.Object, string) {
	return []client.Object{&metallbv1beta1.IPAddressPool{}, &metallbv1beta1.L2Advertisement{}}, Namespace
}

// Lists are those of what is configured.
func (Balancer) Lists() []client.ObjectList {
	return []client.ObjectList{&metallbv1beta1.IPAddressPoolList{}, &metallbv1beta1.L2AdvertisementList{}}
}

// Missing says what happens when it is there.
func (Balancer) Missing() (reason, message string) {
	return v1alpha1.MetalLBMissingReason, "MetalLB is not installed in the Cluster (namespace " + Namespace + "); the blocks of the Cluster are added to MetalLB as soon as it is"
}

// Observe reads Services, and MetalLB's objects.
func (Balancer) Observe(ctx context.Context, services, objects, live client.Reader) (balancer.Observed, error) {
	o, err := Observe(ctx, services, objects, live)
	if err != nil {
		return nil, err
	}
	return observed{o}, nil
}

// Empty reads whether an IPAddressPool serves anybody.
func (Balancer) Empty(ctx context.Context, live client.Reader, pool string, r netipx.IPRange) (string, error) {
	return Empty(ctx, live, pool, r)
}

// LetGo reads whether MetalLB has let go of a range.
func (Balancer) LetGo(ctx context.Context, live client.Reader, r netipx.IPRange) (string, error) {
	return LetGo(ctx, live, r)
}

// observed is what was observed, for whoever shows blocks to any load balancer.
type observed struct{ *Observed }

func (o observed) Installed() bool { return o.Observed.Installed }

func (o observed) Assess(out balancer.Outlook) elastic.Assessment {
	return elastic.Assess(elastic.Inventory{
		Services: o.Services, Class: out.Class, Grows: out.Families, Pools: o.Pools(out.Pools, out.Grows),
	})
}

// Unread says which IPAddressPool cannot be read: what Services may have of it is not known.
func (o observed) Unread() string {
	if len(o.Problems) == 0 {
		return ""
	}
	return o.Problems[0].Error()
}

func (o observed) Foreign(names ...string) string { return o.ForeignPool(names...) }

func (o observed) Changes(want []elastic.Desired) balancer.Changes {
	c := o.Observed.Changes(want)
	return &c
}

// Unplaced says what MetalLB makes of its configuration: it says nothing of the Service.
func (o observed) Unplaced(ctx context.Context, live client.Reader, _ *elastic.Service) (string, error) {
	why, err := Refusal(ctx, live)
	if why == "" {
		why = o.Unread()
	}
	if why == "" {
		why = "check that the MetalLB controller runs, its log, and the events of the Service"
	}
	return why, err
}
