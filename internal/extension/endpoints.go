package extension

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/endpoint"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// patience is how long a request waits for an address. Cluster API asks again, with growing pauses.
const patience = 1500 * time.Millisecond

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusterclasses,verbs=get
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims,verbs=create;delete

// Endpoints answers for which address the templates of a Cluster are to have. It reads live: an answer is as good as what
// it was decided on, and Cluster API asks seldom.
type Endpoints struct {
	Client client.WithWatch
	Clock  clock.PassiveClock
}

// refusal is why a Cluster has no address, as a user is told. Waits: it ends by itself.
type refusal struct {
	message string
	waits   bool
}

func (r refusal) Error() string { return r.message }

// GeneratePatches is the hook.
func (e *Endpoints) GeneratePatches(ctx context.Context, req *hooksv1.GeneratePatchesRequest, resp *hooksv1.GeneratePatchesResponse) {
	start := e.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	patches, err := e.patches(ctx, req)
	metrics.EndpointSeconds.WithLabelValues(outcomeOf(err)).Observe(e.Clock.Since(start).Seconds())
	if err != nil {
		ctrl.LoggerFrom(ctx).V(2).Info("A Cluster gets no endpoint", "why", err.Error())
		resp.SetStatus(hooksv1.ResponseStatusFailure)
		resp.SetMessage(text.Message(err.Error()))
		return
	}
	resp.Items = patches
	resp.SetStatus(hooksv1.ResponseStatusSuccess)
}

func outcomeOf(err error) string {
	var r refusal
	switch {
	case err == nil:
		return metrics.EndpointServed
	case !errors.As(err, &r):
		return metrics.EndpointError
	case r.waits:
		return metrics.EndpointWaits
	}
	return metrics.EndpointRefused
}

func (e *Endpoints) patches(ctx context.Context, req *hooksv1.GeneratePatchesRequest) ([]hooksv1.GeneratePatchesResponseItem, error) {
	cluster, err := e.clusterOf(ctx, req.Variables)
	if err != nil {
		return nil, err
	}
	pool, err := endpoint.PoolOf(cluster, req.Settings)
	if err != nil {
		return nil, refusal{message: err.Error()}
	}
	address, err := e.addressOf(ctx, cluster, pool, req.Settings)
	if err != nil || !address.IsValid() {
		return nil, err
	}
	out, err := endpoint.Patches(cluster, req.Items, address)
	if err != nil {
		return nil, refusal{message: err.Error()}
	}
	return out, nil
}

// clusterOf reads the Cluster that a request is about. What a request says of it but its name is not trusted: whoever
// reaches the port can send one.
func (e *Endpoints) clusterOf(ctx context.Context, variables []hooksv1.Variable) (*clusterv1.Cluster, error) {
	about := hooksv1.Builtins{}
	for _, v := range variables {
		if v.Name != hooksv1.BuiltinsName {
			continue
		}
		if err := json.Unmarshal(v.Value.Raw, &about); err != nil {
			return nil, refusal{message: "variable " + hooksv1.BuiltinsName + " of the request cannot be read: " + err.Error()}
		}
	}
	if about.Cluster == nil {
		return nil, refusal{message: "the request names no Cluster"}
	}
	key := client.ObjectKey{Namespace: about.Cluster.Namespace, Name: about.Cluster.Name}
	cluster := &clusterv1.Cluster{}
	err := e.Client.Get(ctx, key, cluster)
	switch {
	case apierrors.IsNotFound(err), err == nil && cluster.UID != about.Cluster.UID:
		return nil, refusal{message: fmt.Sprintf("Cluster %s is not there any more", key)}
	case err != nil:
		return nil, fmt.Errorf("reading Cluster %s: %w", key, err)
	case !cluster.Spec.Topology.IsDefined():
		return nil, refusal{message: fmt.Sprintf("Cluster %s has no ClusterClass", key)}
	}
	return cluster, nil
}

// mayWrite refuses a request whose settings are not those of the Cluster's class.
func (e *Endpoints) mayWrite(ctx context.Context, cluster *clusterv1.Cluster, settings map[string]string) error {
	class := &clusterv1.ClusterClass{}
	if err := e.Client.Get(ctx, cluster.GetClassKey(), class); err != nil {
		return fmt.Errorf("reading ClusterClass %s: %w", cluster.GetClassKey(), err)
	}
	if err := endpoint.Asks(class, settings); err != nil {
		return refusal{message: err.Error()}
	}
	return nil
}

// addressOf takes one step after the other until there is an address, or it is known that there is none. A Cluster that
// is left out has none, and that is no error.
func (e *Endpoints) addressOf(ctx context.Context, cluster *clusterv1.Cluster, pool ipamv1.IPPoolReference, settings map[string]string) (netip.Addr, error) {
	claim, err := e.claimOf(ctx, cluster)
	if err != nil {
		return netip.Addr{}, err
	}
	follow := follower{Endpoints: e}
	defer follow.stop()
	for {
		seen := endpoint.Seen{Cluster: cluster, Claim: claim}
		if seen.Address, err = e.boundTo(ctx, claim); err != nil {
			return netip.Addr{}, err
		}
		next := endpoint.Decide(seen, pool)
		if next.Step == endpoint.Create || next.Step == endpoint.Delete {
			if err := e.mayWrite(ctx, cluster, settings); err != nil {
				return netip.Addr{}, err
			}
		}
		switch next.Step {
		case endpoint.Serve, endpoint.Leave:
			return next.Address, nil
		case endpoint.Refuse:
			return netip.Addr{}, refusal{next.Message, next.Waits}
		case endpoint.Create:
			claim, err = e.create(ctx, cluster, next.Claim)
			follow.stop() // it is another one
		case endpoint.Delete:
			claim, err = e.delete(ctx, cluster, claim)
			follow.stop()
		case endpoint.Wait:
			claim, err = follow.changed(ctx, claim)
			if errors.Is(err, context.DeadlineExceeded) {
				err = refusal{next.Message, next.Waits}
			}
		}
		if err != nil {
			return netip.Addr{}, err
		}
	}
}
