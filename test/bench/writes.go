package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// unservedPool is a pool without a provider: the manager observes its claims, and so the watches are open that any
// provider needs.
var unservedPool = ipamv1.IPPoolReference{APIGroup: "bench.example.com", Kind: "None", Name: "none"}

// createUnservedClaim creates a claim of the pool without a provider.
func (c *clients) createUnservedClaim(ctx context.Context, name string) error {
	return c.Create(ctx, framework.MakeClaim(namespace, name).PoolRef(unservedPool.APIGroup, unservedPool.Kind, unservedPool.Name).Obj())
}

// writeClaim does the writes of the manager for a claim: the record on the claim, the IPAddress, the claim's status.
func (c *clients) writeClaim(ctx context.Context, name string, i int) error {
	claim := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	ip := fmt.Sprintf("10.0.%d.%d", i/256, i%256)
	if err := c.Patch(ctx, claim, metadataPatch(map[string]any{
		finalizersField:  []string{"ipam.cluster.x-k8s.io/ReleaseAddress"},
		annotationsField: map[string]string{v1alpha1.AddressAnnotation: ip},
	})); err != nil {
		return err
	}
	address := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Finalizers: []string{"ipam.cluster.x-k8s.io/ProtectAddress"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, UID: claim.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)},
				{APIVersion: v1alpha1.GroupVersion.String(), Kind: unservedPool.Kind, Name: unservedPool.Name, UID: claim.UID, Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true)},
			},
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: unservedPool, Address: ip, Prefix: ptr.To[int32](16),
		},
	}
	if err := c.Create(ctx, address); err != nil {
		return err
	}
	old := newCondition("Ready", "True", "Allocated", "")
	delete(old, "reason") // as the manager writes it
	delete(old, "message")
	return c.Status().Patch(ctx, claim, statusPatch(map[string]any{
		"addressRef":    map[string]any{"name": name},
		conditionsField: []any{newCondition("Ready", "True", "Allocated", "")},
		"deprecated":    map[string]any{"v1beta1": map[string]any{conditionsField: []any{old}}},
	}))
}

// releaseClaim does the writes of a release: the user's, which deletes the claim, and the manager's.
func (c *clients) releaseClaim(ctx context.Context, name string) error {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	claim, address := &ipamv1.IPAddressClaim{ObjectMeta: meta}, &ipamv1.IPAddress{ObjectMeta: meta}
	unprotected := metadataPatch(map[string]any{finalizersField: []string{}})
	if err := c.Delete(ctx, claim); err != nil {
		return err
	}
	if err := c.Patch(ctx, address, unprotected); err != nil {
		return err
	}
	if err := c.Delete(ctx, address); err != nil {
		return err
	}
	return c.Patch(ctx, claim, unprotected)
}

// Names of fields, and the reporting controller of the benchmark's events.
const (
	annotationsField = "annotations"
	conditionsField  = "conditions"
	finalizersField  = "finalizers"
	reporter         = "bench"
)

// newCondition returns a condition for either API version.
func newCondition(kind, status, reason, message string) map[string]any {
	return map[string]any{"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339)}
}

// metadataPatch patches the metadata of an object.
func metadataPatch(body map[string]any) client.Patch {
	return mergePatch(map[string]any{"metadata": body})
}

// statusPatch patches the status of an object.
func statusPatch(body map[string]any) client.Patch { return mergePatch(map[string]any{"status": body}) }

func mergePatch(body map[string]any) client.Patch {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return client.RawPatch(types.MergePatchType, raw)
}
