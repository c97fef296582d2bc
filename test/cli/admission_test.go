package cli

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	capiadmission "sigs.k8s.io/cluster-api/core/webhooks/admission"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

// installInCluster installs the pools of the in-cluster provider.
func installInCluster() error {
	_, err := envtest.InstallCRDs(cp.Config, envtest.CRDInstallOptions{Paths: []string{"testdata/inclusterippools.yaml"}, ErrorIfPathMissing: true})
	return err
}

// serveAdmission has Cluster API's own validation asked about claims and IPAddresses, as in a management cluster.
func serveAdmission(t *testing.T) {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/claim", admission.WithValidator[*ipamv1.IPAddressClaim](k8s.Scheme(), &capiadmission.IPAddressClaim{}))
	mux.Handle("/address", admission.WithValidator[*ipamv1.IPAddress](k8s.Scheme(), &capiadmission.IPAddress{Client: k8s}))
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	hook := func(name, path, resource string) admissionregistrationv1.ValidatingWebhook {
		return admissionregistrationv1.ValidatingWebhook{
			Name:                    name,
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To(server.URL + path), CABundle: ca},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{"CREATE", "UPDATE", "DELETE"},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{"ipam.cluster.x-k8s.io"}, APIVersions: []string{"v1beta2"}, Resources: []string{resource}},
			}},
		}
	}
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "capi"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{
			hook("validation.ipaddressclaim.ipam.cluster.x-k8s.io", "/claim", "ipaddressclaims"),
			hook("validation.ipaddress.ipam.cluster.x-k8s.io", "/address", "ipaddresses"),
		},
	}
	create(t, config)
	t.Cleanup(func() {
		if err := k8s.Delete(context.WithoutCancel(t.Context()), config); err != nil {
			t.Error(err)
		}
	})
	// It is in force when it refuses what Cluster API refuses.
	bad := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "probe"},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: "x"}, PoolRef: ipamv1.IPPoolReference{APIGroup: "g.io", Kind: "K", Name: "n"},
			Address: "nonsense", Prefix: ptr.To[int32](24),
		},
	}
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Create(ctx, bad.DeepCopy(), client.DryRunAll); err == nil {
			return errNotYet
		}
		return nil
	})
}
