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

// register names the webhooks to the API server, and returns when it asks them.
func register(ctx context.Context, cp *framework.ControlPlane, at *endpoint) error {
	scheme, err := framework.Scheme()
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
	hooks, err := ipamHooks(ctx)
	if err != nil {
		return err
	}
	for i := range hooks.Webhooks {
		hook := &hooks.Webhooks[i].ClientConfig
		*hook = admissionv1.WebhookClientConfig{URL: at.url(*hook.Service.Path), CABundle: at.ca}
	}
	if err := admin.Create(ctx, hooks); err != nil {
		return err
	}
	// Changes of CRDs take effect one after the other: what is seen of the last holds for both.
	for _, resource := range []string{"ipaddresses", "ipaddressclaims"} {
		if err := convert(ctx, admin, resource, at); err != nil {
			return err
		}
	}
	return until(ctx, func(ctx context.Context) (bool, error) { return asked(ctx, admin), nil })
}

// ipamHooks are those of the manifest of Cluster API that are about the kinds of IPAM.
func ipamHooks(ctx context.Context) (*admissionv1.ValidatingWebhookConfiguration, error) {
	dir, err := framework.ClusterAPIDir(ctx)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "core", "config", "webhook", "manifests.yaml"))
	if err != nil {
		return nil, err
	}
	docs, err := framework.Documents(text)
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

// convert names the conversion webhook in a CRD, as the patch in the manifests of Cluster API does.
func convert(ctx context.Context, admin client.Client, resource string, at *endpoint) error {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := admin.Get(ctx, client.ObjectKey{Name: resource + "." + ipamv1.GroupVersion.Group}, crd); err != nil {
		return err
	}
	patch := client.MergeFrom(crd.DeepCopy())
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: at.url("/convert"), CABundle: at.ca},
		},
	}
	return admin.Patch(ctx, crd, patch)
}

// asked reports whether the API server asks for both: it takes a moment to. Nothing is written.
func asked(ctx context.Context, admin client.Client) bool {
	about := metav1.ObjectMeta{Namespace: framework.DefaultNamespace, Name: "asked"}
	// An empty group is none after a conversion to v1beta2 and back, and empty without one.
	claim := &ipamv1beta1.IPAddressClaim{ObjectMeta: about}
	claim.Spec.PoolRef.APIGroup, claim.Spec.PoolRef.Kind, claim.Spec.PoolRef.Name = ptr.To(""), "None", "none"
	if err := admin.Create(ctx, claim, client.DryRunAll); err != nil || claim.Spec.PoolRef.APIGroup != nil {
		return false
	}
	// The schema takes an address that is none, the admission does not.
	address := &ipamv1.IPAddress{ObjectMeta: about, Spec: ipamv1.IPAddressSpec{
		ClaimRef: ipamv1.IPAddressClaimReference{Name: "none"},
		PoolRef:  ipamv1.IPPoolReference{APIGroup: "example.com", Kind: "None", Name: "none"},
		Address:  "none", Prefix: ptr.To[int32](24),
	}}
	return admin.Create(ctx, address, client.DryRunAll) != nil
}
