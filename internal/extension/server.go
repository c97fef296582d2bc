// Package extension serves the hooks of Cluster API's Runtime SDK by which the Clusters of a ClusterClass get their
// endpoints from pools. Package endpoint decides; this package reads, writes and waits.
package extension

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	runtimecatalog "sigs.k8s.io/cluster-api/api/runtime/catalog"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/cluster-api/exp/runtime/server"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/endpoint"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
)

// hookTimeoutSeconds is the timeout that Cluster API applies to the hooks; a request takes no longer than
// requestTimeout.
const hookTimeoutSeconds = 5

// NewServer returns a server for hooks and webhooks: both share a port and a certificate.
func NewServer(port int, certDir string, tlsOptions []func(*tls.Config)) (*server.Server, error) {
	catalog := runtimecatalog.New()
	if err := hooksv1.AddToCatalog(catalog); err != nil {
		return nil, fmt.Errorf("the catalog of hooks: %w", err)
	}
	return server.New(server.Options{Catalog: catalog, Port: port, CertDir: certDir, TLSOpts: tlsOptions})
}

// SetupHooks registers the hooks with the server of a manager, which must be one of NewServer. Every manager answers,
// leader or not: the API server orders their writes.
func SetupHooks(mgr manager.Manager) error {
	s, ok := mgr.GetWebhookServer().(*server.Server)
	if !ok {
		return errors.New("the manager has no server of hooks")
	}
	live, err := client.NewWithWatch(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	metrics.RegisterEndpointMetrics()
	e := &EndpointPatcher{Client: live, Clock: clock.RealClock{}}
	for _, h := range []server.ExtensionHandler{
		{Hook: hooksv1.GeneratePatches, Name: endpoint.PatchesHandler, HandlerFunc: e.GeneratePatches},
		{Hook: hooksv1.DiscoverVariables, Name: endpoint.VariablesHandler, HandlerFunc: discoverVariables},
	} {
		h.TimeoutSeconds, h.FailurePolicy = ptr.To[int32](hookTimeoutSeconds), ptr.To(hooksv1.FailurePolicyFail)
		if err := s.AddExtensionHandler(h); err != nil {
			return fmt.Errorf("handler %s: %w", h.Name, err)
		}
	}
	return nil
}

func discoverVariables(_ context.Context, _ *hooksv1.DiscoverVariablesRequest, resp *hooksv1.DiscoverVariablesResponse) {
	resp.Variables = endpoint.ClusterVariables()
	resp.SetStatus(hooksv1.ResponseStatusSuccess)
}
