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

// requestTimeout limits how long a request waits for an address. Cluster API repeats it, with growing intervals.
const requestTimeout = 1500 * time.Millisecond

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusterclasses,verbs=get
// +kubebuilder:rbac:groups=ipam.cluster.x-k8s.io,resources=ipaddressclaims,verbs=create;delete

// EndpointPatcher answers requests for the address in the templates of a Cluster. It reads live: an answer is only as
// good as the state it was decided on, and Cluster API sends few requests.
type EndpointPatcher struct {
	Client client.WithWatch
	Clock  clock.PassiveClock
}

// refusalError is the reason why a Cluster has no address, for the user. temporary reports whether the refusal ends by
// itself.
type refusalError struct {
	message   string
	temporary bool
}

func (r refusalError) Error() string { return r.message }

// GeneratePatches implements the hook GeneratePatches of the Runtime SDK.
func (e *EndpointPatcher) GeneratePatches(ctx context.Context, req *hooksv1.GeneratePatchesRequest, resp *hooksv1.GeneratePatchesResponse) {
	start := e.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	patches, err := e.buildPatches(ctx, req)
	metrics.EndpointSeconds.WithLabelValues(outcomeLabel(err)).Observe(e.Clock.Since(start).Seconds())
	if err != nil {
		ctrl.LoggerFrom(ctx).V(2).Info("A Cluster gets no endpoint", "why", err.Error())
		resp.SetStatus(hooksv1.ResponseStatusFailure)
		resp.SetMessage(text.SanitizeMessage(err.Error()))
		return
	}
	resp.Items = patches
	resp.SetStatus(hooksv1.ResponseStatusSuccess)
}

func outcomeLabel(err error) string {
	var r refusalError
	switch {
	case err == nil:
		return metrics.EndpointServed
	case !errors.As(err, &r):
		return metrics.EndpointError
	case r.temporary:
		return metrics.EndpointWaiting
	}
	return metrics.EndpointRefused
}

func (e *EndpointPatcher) buildPatches(ctx context.Context, req *hooksv1.GeneratePatchesRequest) ([]hooksv1.GeneratePatchesResponseItem, error) {
	cluster, err := e.clusterFromVariables(ctx, req.Variables)
	if err != nil {
		return nil, err
	}
	pool, err := endpoint.PoolForCluster(cluster, req.Settings)
	if err != nil {
		return nil, refusalError{message: err.Error()}
	}
	address, err := e.addressForCluster(ctx, cluster, pool, req.Settings)
	if err != nil || !address.IsValid() {
		return nil, err
	}
	out, err := endpoint.BuildPatches(cluster, req.Items, address)
	if err != nil {
		return nil, refusalError{message: err.Error()}
	}
	return out, nil
}

// clusterFromVariables reads the Cluster that a request names. Nothing else in the request about it is trusted: any
// client that reaches the port can send one.
func (e *EndpointPatcher) clusterFromVariables(ctx context.Context, variables []hooksv1.Variable) (*clusterv1.Cluster, error) {
	about := hooksv1.Builtins{}
	for _, v := range variables {
		if v.Name != hooksv1.BuiltinsName {
			continue
		}
		if err := json.Unmarshal(v.Value.Raw, &about); err != nil {
			return nil, refusalError{message: "variable " + hooksv1.BuiltinsName + " of the request cannot be read: " + err.Error()}
		}
	}
	if about.Cluster == nil {
		return nil, refusalError{message: "the request names no Cluster"}
	}
	key := client.ObjectKey{Namespace: about.Cluster.Namespace, Name: about.Cluster.Name}
	cluster := &clusterv1.Cluster{}
	err := e.Client.Get(ctx, key, cluster)
	switch {
	case apierrors.IsNotFound(err), err == nil && cluster.UID != about.Cluster.UID:
		return nil, refusalError{message: fmt.Sprintf("Cluster %s no longer exists", key)}
	case err != nil:
		return nil, fmt.Errorf("reading Cluster %s: %w", key, err)
	case !cluster.Spec.Topology.IsDefined():
		return nil, refusalError{message: fmt.Sprintf("Cluster %s has no ClusterClass", key)}
	}
	return cluster, nil
}

// checkClassSettings refuses a request whose settings are not those of the Cluster's class.
func (e *EndpointPatcher) checkClassSettings(ctx context.Context, cluster *clusterv1.Cluster, settings map[string]string) error {
	class := &clusterv1.ClusterClass{}
	if err := e.Client.Get(ctx, cluster.GetClassKey(), class); err != nil {
		return fmt.Errorf("reading ClusterClass %s: %w", cluster.GetClassKey(), err)
	}
	if err := endpoint.CheckClassSettings(class, settings); err != nil {
		return refusalError{message: err.Error()}
	}
	return nil
}

// addressForCluster takes one step after the other until there is an address, or it is certain that there is none. For
// a Cluster that takes no address of a pool it returns the zero value and no error.
func (e *EndpointPatcher) addressForCluster(ctx context.Context, cluster *clusterv1.Cluster, pool ipamv1.IPPoolReference, settings map[string]string) (netip.Addr, error) {
	claim, err := e.claimForCluster(ctx, cluster)
	if err != nil {
		return netip.Addr{}, err
	}
	follow := claimWatcher{EndpointPatcher: e}
	defer follow.stopWatch()
	for {
		seen := endpoint.ObservedState{Cluster: cluster, Claim: claim}
		if seen.Address, err = e.addressForClaim(ctx, claim); err != nil {
			return netip.Addr{}, err
		}
		next := endpoint.DecideAction(seen, pool)
		if next.Action == endpoint.ActionCreate || next.Action == endpoint.ActionDelete {
			if err := e.checkClassSettings(ctx, cluster, settings); err != nil {
				return netip.Addr{}, err
			}
		}
		switch next.Action {
		case endpoint.ActionServe, endpoint.ActionSkip:
			return next.Address, nil
		case endpoint.ActionRefuse:
			return netip.Addr{}, refusalError{next.Message, next.Temporary}
		case endpoint.ActionCreate:
			claim, err = e.createClaim(ctx, cluster, next.Claim)
			follow.stopWatch() // the claim is another object now
		case endpoint.ActionDelete:
			claim, err = e.deleteClaim(ctx, cluster, claim)
			follow.stopWatch()
		case endpoint.ActionWait:
			claim, err = follow.waitForChange(ctx, claim)
			if errors.Is(err, context.DeadlineExceeded) {
				err = refusalError{next.Message, next.Temporary}
			}
		}
		if err != nil {
			return netip.Addr{}, err
		}
	}
}
