// Package coreapi serves in a test what Cluster API's core manager serves for IPAddressClaims and IPAddresses: its
// own admission, and its own conversion between the versions of its API. Without this package a control plane has the
// CRDs alone: it accepts objects that Cluster API would refuse, and does not convert for readers of v1beta1.
package coreapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	ipamv1alpha1 "sigs.k8s.io/cluster-api/api/ipam/v1alpha1"
	ipamv1beta1 "sigs.k8s.io/cluster-api/api/ipam/v1beta1"
	"sigs.k8s.io/cluster-api/core/webhooks/admission"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// startTimeout bounds a start on a busy machine.
const startTimeout = 2 * time.Minute

// ServeWebhooks starts the webhooks in this process and returns when the API server calls them. The caller ends them
// with the returned function, before the control plane.
func ServeWebhooks(ctx context.Context, cp *framework.ControlPlane) (stop func() error, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("serving the webhooks of Cluster API: %w", err)
		}
	}()
	at, err := newWebhookEndpoint(cp)
	if err != nil {
		return nil, err
	}
	mgr, err := newManager(cp, at)
	if err != nil {
		return nil, err
	}
	running, end := context.WithCancel(context.Background()) // the webhooks outlive the step that starts them
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	stop = func() error { end(); return <-ended }

	serving := mgr.GetWebhookServer().StartedChecker()
	err = pollUntil(ctx, func(context.Context) (bool, error) { return serving(&http.Request{}) == nil, nil })
	if err == nil {
		err = registerWebhooks(ctx, cp, at)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func newManager(cp *framework.ControlPlane, at *webhookEndpoint) (ctrl.Manager, error) {
	scheme, err := framework.NewScheme()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(ipamv1alpha1.AddToScheme(scheme), ipamv1beta1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cp.Config, ctrl.Options{
		Scheme:        scheme,
		Logger:        logr.Discard(),
		Metrics:       metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: at.host, Port: at.port, CertDir: at.certDir}),
	})
	if err != nil {
		return nil, err
	}
	return mgr, errors.Join(
		(&admission.IPAddress{Client: mgr.GetAPIReader()}).SetupWebhookWithManager(mgr), // as the main of Cluster API does
		(&admission.IPAddressClaim{}).SetupWebhookWithManager(mgr),
	)
}

// webhookEndpoint is the address at which the webhooks are served, with their certificate.
type webhookEndpoint struct {
	host     string
	port     int
	certDir  string
	caBundle []byte
}

func newWebhookEndpoint(cp *framework.ControlPlane) (*webhookEndpoint, error) {
	port, err := framework.FreePort()
	if err != nil {
		return nil, err
	}
	at := &webhookEndpoint{host: "127.0.0.1", port: port, certDir: filepath.Join(cp.Dir, "coreapi")}
	if err := os.MkdirAll(at.certDir, 0o700); err != nil {
		return nil, err
	}
	at.caBundle, err = framework.WriteServingCerts(at.certDir)
	return at, err
}

func (e *webhookEndpoint) urlForPath(path string) *string {
	url := "https://" + net.JoinHostPort(e.host, strconv.Itoa(e.port)) + path
	return &url
}

// pollUntil calls yes repeatedly until it returns true or an error.
func pollUntil(ctx context.Context, yes wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, startTimeout, true, yes)
}
