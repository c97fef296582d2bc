package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

var errLive = errors.New("read from the API server")

// splitManager is a manager that reads nothing: the test sees which reads go to the API server, and which to the cache.
type splitManager struct{ manager.Manager }

func (splitManager) GetAPIReader() client.Reader { return unreadableReader{errLive} }
func (splitManager) GetClient() client.Client    { return cached{} }

type unreadableReader struct{ err error }

func (u unreadableReader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return u.err
}
func (u unreadableReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return u.err
}

// cached is a cache that has no object yet.
type cached struct{ client.Client }

func (cached) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}
func (cached) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// TestSetupReadsLive checks that the webhooks, as they are set up, list holders from the API server (W14): a cache that
// does not have a claim yet would let its address be cut off.
func TestSetupReadsLive(t *testing.T) {
	scheme, err := framework.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	server := webhook.NewServer(webhook.Options{})
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://localhost:1"}, ctrl.Options{
		Scheme: scheme, WebhookServer: server, Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := SetupWithManager(splitManager{mgr}); err != nil {
		t.Fatal(err)
	}
	for kind, pools := range map[string][2]runtime.Object{
		"networkpool":       {framework.MakePool("p").CIDR("10.0.0.0/24").Obj(), framework.MakePool("p").CIDR("10.0.0.0/25").Obj()},
		"globalnetworkpool": {framework.MakeGlobalPool("p").CIDR("10.0.0.0/24").Obj(), framework.MakeGlobalPool("p").CIDR("10.0.0.0/25").Obj()},
	} {
		t.Run(kind, func(t *testing.T) {
			review := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
				UID: "u", Operation: admissionv1.Update, OldObject: raw(t, pools[0]), Object: raw(t, pools[1]),
			}}
			review.SetGroupVersionKind(admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"))
			body, err := json.Marshal(review)
			if err != nil {
				t.Fatal(err)
			}
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate-butler-butlerlabs-dev-v1alpha1-"+kind, bytes.NewReader(body))
			request.Header.Set("Content-Type", "application/json")
			answer := httptest.NewRecorder()
			server.WebhookMux().ServeHTTP(answer, request)
			if !bytes.Contains(answer.Body.Bytes(), []byte(errLive.Error())) {
				t.Errorf("%d: %s", answer.Code, answer.Body)
			}
		})
	}
}

func raw(t *testing.T, o runtime.Object) runtime.RawExtension {
	t.Helper()
	if p, ok := o.(v1alpha1.Pool); ok {
		o.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kindForPool(p)))
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.RawExtension{Raw: text}
}
