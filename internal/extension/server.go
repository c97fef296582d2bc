// Package extension serves the hooks of Cluster API's Runtime SDK by which a ClusterClass has the endpoints of its Clusters
// from pools. package endpoint decides; this one reads, writes, and waits for answers.
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

// timeoutSeconds is what Cluster API is told that an answer takes at most; ours take no longer than patience.
const timeoutSeconds = 5

// NewServer returns a server of the hooks, and of webhooks beside them: both have one port and one certificate.
func NewServer(port int, certDir string, tlsOptions []func(*tls.Config)) (*server.Server, error) {
	catalog := runtimecatalog.New()
	if err := hooksv1.AddToCatalog(catalog); err != nil {
		return nil, fmt.Errorf("the catalog of hooks: %w", err)
	}
	return server.New(server.Options{Catalog: catalog, Port: port, CertDir: certDir, TLSOpts: tlsOptions})
}

// Setup has the server of a manager, which is one of NewServer, serve the hooks. Every manager answers, leader or not: what they write is
// decided by the API server.
func Setup(mgr manager.Manager) error {
	s, is := mgr.GetWebhookServer().(*server.Server)
	if !is {
		return errors.New("the manager has no server of hooks")
	}
	live, err := client.NewWithWatch(mgr.GetConfig(), client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	metrics.ServeEndpoints()
	e := &Endpoints{Client: live, Clock: clock.RealClock{}}
	for _, h := range []server.ExtensionHandler{
		{Hook: hooksv1.GeneratePatches, Name: endpoint.PatchesHandler, HandlerFunc: e.GeneratePatches},
		{Hook: hooksv1.DiscoverVariables, Name: endpoint.VariablesHandler, HandlerFunc: discoverVariables},
	} {
		h.TimeoutSeconds, h.FailurePolicy = ptr.To[int32](timeoutSeconds), ptr.To(hooksv1.FailurePolicyFail)
		if err := s.AddExtensionHandler(h); err != nil {
			return fmt.Errorf("handler %s: %w", h.Name, err)
		}
	}
	return nil
}

func discoverVariables(_ context.Context, _ *hooksv1.DiscoverVariablesRequest, resp *hooksv1.DiscoverVariablesResponse) {
	resp.Variables = endpoint.Variables()
	resp.SetStatus(hooksv1.ResponseStatusSuccess)
}
