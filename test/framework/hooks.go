package framework

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
)

// HooksClient calls the hooks of a manager with --control-plane-endpoints, or of several managers behind one address.
type HooksClient struct {
	// URL is the address of the hooks, without a path.
	URL        string
	httpClient *http.Client
}

// NewHooksClient returns a client for the hooks at a port on loopback, which are served with a certificate of
// WriteServingCerts. If shared is set, requests share a connection, as those of Cluster API do; else each request
// opens its own.
func NewHooksClient(port int, ca []byte, shared bool) HooksClient {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ca)
	return HooksClient{"https://" + loopbackAddress(port), &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}, DisableKeepAlives: !shared, ForceAttemptHTTP2: shared,
	}}}
}

// GeneratePatches requests the patches for the infrastructure of a Cluster, as Cluster API does, or as any client
// could that reaches the port.
func (h HooksClient) GeneratePatches(ctx context.Context, cluster *clusterv1.Cluster, settings map[string]string) (*hooksv1.GeneratePatchesResponse, error) {
	builtins, err := json.Marshal(hooksv1.Builtins{Cluster: &hooksv1.ClusterBuiltins{Namespace: cluster.Namespace, Name: cluster.Name, UID: cluster.UID}})
	if err != nil {
		return nil, err
	}
	req := &hooksv1.GeneratePatchesRequest{Variables: []hooksv1.Variable{{Name: hooksv1.BuiltinsName}}}
	req.Settings = settings
	req.Variables[0].Value.Raw = builtins
	item := hooksv1.GeneratePatchesRequestItem{UID: "infrastructure", HolderReference: hooksv1.HolderReference{Kind: clusterv1.ClusterKind, FieldPath: "spec.infrastructureRef"}}
	item.Object.Raw = []byte(`{}`)
	req.Items = []hooksv1.GeneratePatchesRequestItem{item}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	code, text, err := h.sendRequest(ctx, http.MethodPost, "generatepatches/control-plane-endpoint", body)
	if err != nil || code != http.StatusOK {
		return nil, fmt.Errorf("asking for the endpoint of a Cluster: %d %w", code, err)
	}
	out := &hooksv1.GeneratePatchesResponse{}
	return out, json.Unmarshal(text, out)
}

// DiscoverHooks requests the list of hooks, and returns the status code of the response.
func (h HooksClient) DiscoverHooks(ctx context.Context) (code int, err error) {
	code, _, err = h.sendRequest(ctx, http.MethodGet, "discovery", nil)
	return code, err
}

func (h HooksClient) sendRequest(ctx context.Context, method, path string, body []byte) (code int, text []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, method, h.URL+"/"+hooksv1.GroupVersion.String()+"/"+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	resp, err := h.httpClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}
