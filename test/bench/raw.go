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
)

// measureRaw adds how many of n claims a bare client serves in a second: the three writes of each, with the watches
// open that any provider needs, but without decisions and memory. It returns that limit. If full, it adds the same
// for the release of claims.
func measureRaw(ctx context.Context, n int, o options, full bool, t *table) (limit float64, err error) {
	err = withControlPlane(ctx, func(c *clients) error {
		if err := runEach(ctx, n, func(ctx context.Context, i int) error { return c.createClaim(ctx, claimName(i)) }); err != nil {
			return err
		}
		for _, list := range []client.ObjectList{&ipamv1.IPAddressClaimList{}, &ipamv1.IPAddressList{}, &v1alpha1.NetworkPoolList{}} {
			stop, err := c.drainWatch(ctx, list)
			if err != nil {
				return err
			}
			defer stop() //nolint:gocritic // three of them, until the measurement ends
		}
		start := time.Now()
		if err := runEach(ctx, n, func(ctx context.Context, i int) error { return c.writeClaim(ctx, claimName(i), benchPool, i) }); err != nil {
			return err
		}
		took := time.Since(start)
		limit = float64(n) / took.Seconds()
		t.rate(fmt.Sprintf("raw limit, bare client, 16 at a time, %d claims", n), n, took, 0)
		if !full {
			return nil
		}
		released := min(n, o.releases)
		start = time.Now()
		err := runEach(ctx, released, func(ctx context.Context, i int) error { return c.releaseClaim(ctx, claimName(i)) })
		t.rate(fmt.Sprintf("release by a bare client of %d claims of %d", released, n), released, time.Since(start), limit)
		return err
	})
	return limit, err
}

// drainWatch opens a watch and reads its events, for the cost of decoding them.
func (c *clients) drainWatch(ctx context.Context, list client.ObjectList) (stop func(), err error) {
	w, err := c.Watch(ctx, list)
	if err != nil {
		return nil, err
	}
	go func() {
		events := 0
		for range w.ResultChan() {
			events++
		}
	}()
	return w.Stop, nil
}

// benchPool is the pool of the benchmark.
var benchPool = ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: poolName}

// writeClaim does the writes of the manager for a claim: the record on the claim, the IPAddress, the claim's status.
func (c *clients) writeClaim(ctx context.Context, name string, pool ipamv1.IPPoolReference, i int) error {
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
				{APIVersion: v1alpha1.GroupVersion.String(), Kind: pool.Kind, Name: pool.Name, UID: claim.UID, Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true)},
			},
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: pool, Address: ip, Prefix: ptr.To[int32](16),
		},
	}
	if err := c.Create(ctx, address); err != nil {
		return err
	}
	now := metav1.Now().UTC().Format(time.RFC3339)
	old := newCondition("Ready", "True", "Allocated", now)
	delete(old, "reason") // as the manager writes it
	delete(old, "message")
	return c.Status().Patch(ctx, claim, statusPatch(map[string]any{
		"addressRef":    map[string]any{"name": name},
		conditionsField: []any{newCondition("Ready", "True", "Allocated", now)},
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

// newCondition returns a condition for either API version.
func newCondition(kind, status, reason, since string) map[string]any {
	return map[string]any{"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": since}
}

// Names of fields, and the reporting controller of the benchmark's events.
const (
	annotationsField = "annotations"
	conditionsField  = "conditions"
	finalizersField  = "finalizers"
	reporter         = "bench"
)

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
