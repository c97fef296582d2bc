package coreapi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ipamv1beta1 "sigs.k8s.io/cluster-api/api/ipam/v1beta1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// registerWebhooks registers the webhooks with the API server, and returns when the API server calls them.
func registerWebhooks(ctx context.Context, cp *framework.ControlPlane, at *webhookEndpoint) error {
	scheme, err := framework.NewScheme()
	if err != nil {
		return err
	}
	if err := ipamv1beta1.AddToScheme(scheme); err != nil {
		return err
	}
	admin, err := client.New(cp.Config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	hooks, err := readIPAMWebhooks(ctx)
	if err != nil {
		return err
	}
	for i := range hooks.Webhooks {
		hook := &hooks.Webhooks[i].ClientConfig
		*hook = admissionv1.WebhookClientConfig{URL: at.urlForPath(*hook.Service.Path), CABundle: at.caBundle}
	}
	if err := admin.Create(ctx, hooks); err != nil {
		return err
	}
	// Changes of CRDs take effect in order: once the last one is in effect, so is the first.
	for _, resource := range []string{"ipaddresses", "ipaddressclaims"} {
		if err := setConversionWebhook(ctx, admin, resource, at); err != nil {
			return err
		}
	}
	return pollUntil(ctx, func(ctx context.Context) (bool, error) { return areWebhooksCalled(ctx, admin), nil })
}

// readIPAMWebhooks returns the webhooks in the manifest of Cluster API that are for the kinds of IPAM.
func readIPAMWebhooks(ctx context.Context) (*admissionv1.ValidatingWebhookConfiguration, error) {
	dir, err := framework.FindClusterAPIDir(ctx)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "core", "config", "webhook", "manifests.yaml"))
	if err != nil {
		return nil, err
	}
	docs, err := framework.ParseManifests(text)
	if err != nil {
		return nil, err
	}
	for _, doc := range docs {
		if doc.GetKind() != "ValidatingWebhookConfiguration" {
			continue
		}
		hooks := &admissionv1.ValidatingWebhookConfiguration{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(doc.Object, hooks, true); err != nil {
			return nil, err
		}
		hooks.Name = "cluster-api-ipam"
		hooks.Webhooks = slices.DeleteFunc(hooks.Webhooks, func(w admissionv1.ValidatingWebhook) bool {
			return w.Rules[0].APIGroups[0] != ipamv1.GroupVersion.Group
		})
		return hooks, nil
	}
	return nil, errors.New("its manifest has no ValidatingWebhookConfiguration")
}

// setConversionWebhook sets the conversion webhook in a CRD, as the patch in the manifests of Cluster API does.
func setConversionWebhook(ctx context.Context, admin client.Client, resource string, at *webhookEndpoint) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := admin.Get(ctx, client.ObjectKey{Name: resource + "." + ipamv1.GroupVersion.Group}, crd); err != nil {
		return err
	}
	patch := client.MergeFrom(crd.DeepCopy())
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: at.urlForPath("/convert"), CABundle: at.caBundle},
		},
	}
	return admin.Patch(ctx, crd, patch)
}

// areWebhooksCalled reports whether the API server calls both the conversion and the admission webhook, which takes
// it a moment. It writes nothing.
func areWebhooksCalled(ctx context.Context, admin client.Client) bool {
	about := metav1.ObjectMeta{Namespace: framework.DefaultNamespace, Name: "asked"}
	// An empty group becomes nil in a conversion to v1beta2 and back, and stays empty without the conversion.
	claim := &ipamv1beta1.IPAddressClaim{ObjectMeta: about}
	claim.Spec.PoolRef.APIGroup, claim.Spec.PoolRef.Kind, claim.Spec.PoolRef.Name = ptr.To(""), "None", "none"
	if err := admin.Create(ctx, claim, client.DryRunAll); err != nil || claim.Spec.PoolRef.APIGroup != nil {
		return false
	}
	// The schema accepts a value that is not an address; the admission webhook refuses it.
	address := &ipamv1.IPAddress{ObjectMeta: about, Spec: ipamv1.IPAddressSpec{
		ClaimRef: ipamv1.IPAddressClaimReference{Name: "none"},
		PoolRef:  ipamv1.IPPoolReference{APIGroup: "example.com", Kind: "None", Name: "none"},
		Address:  "none", Prefix: ptr.To[int32](24),
	}}
	return admin.Create(ctx, address, client.DryRunAll) != nil
}
