package framework

import (
	"context"
	"fmt"
	"strings"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// Metal3Module is the module of Metal3's IPAM, as FindProviderCRDs takes it.
const Metal3Module = "github.com/metal3-io/ip-address-manager"

// Metal3DataFinalizer is the finalizer that CAPM3 puts on the claims of its machines.
const Metal3DataFinalizer = "metal3data.infrastructure.cluster.x-k8s.io"

// InstallMetal3Pools installs the CRDs of Metal3's IPAM. No controller and no webhook serves them.
func (c *ControlPlane) InstallMetal3Pools(ctx context.Context) error {
	paths, err := FindProviderCRDs(ctx, Metal3Module)
	if err != nil {
		return err
	}
	if _, err := envtest.InstallCRDs(c.Config, envtest.CRDInstallOptions{Paths: paths, MaxTime: startTimeout}); err != nil {
		return fmt.Errorf("installing the CRDs of Metal3's IPAM: %w", err)
	}
	return nil
}

// NewMetal3Claim returns an IPClaim as CAPM3 creates it for a machine that names a pool of Metal3.
func NewMetal3Claim(namespace, data, pool string, owner metav1.OwnerReference, labels map[string]string) *m3ipamv1.IPClaim {
	return &m3ipamv1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: data + "-" + pool, Labels: labels, Finalizers: []string{Metal3DataFinalizer},
			OwnerReferences: []metav1.OwnerReference{owner},
		},
		Spec: m3ipamv1.IPClaimSpec{Pool: corev1.ObjectReference{Name: pool, Namespace: namespace}},
	}
}

// AddMetal3Finalizer does what Metal3's IPAM does for an IPClaim before it chooses an address; if no address is free,
// Metal3's IPAM does nothing else.
func AddMetal3Finalizer(ctx context.Context, c client.Client, claim *m3ipamv1.IPClaim) error {
	claim.Finalizers = append(claim.Finalizers, m3ipamv1.IPClaimFinalizer)
	return c.Update(ctx, claim)
}

// FulfilAsMetal3 does what Metal3's IPAM does for an IPClaim: it adds its finalizer, creates an IPAddress that is
// named after the address, and sets the status.
func FulfilAsMetal3(ctx context.Context, c client.Client, pool *m3ipamv1.IPPool, claim *m3ipamv1.IPClaim, spec m3ipamv1.IPAddressSpec) error {
	if err := AddMetal3Finalizer(ctx, c, claim); err != nil {
		return err
	}
	version := m3ipamv1.GroupVersion.String()
	spec.Pool = corev1.ObjectReference{Name: pool.Name, Namespace: pool.Namespace}
	spec.Claim = corev1.ObjectReference{Name: claim.Name, Namespace: claim.Namespace}
	address := &m3ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: pool.Spec.NamePrefix + "-" + strings.NewReplacer(".", "-", ":", "-").Replace(string(spec.Address)),
			Labels: claim.Labels, Finalizers: []string{m3ipamv1.IPAddressFinalizer}, OwnerReferences: []metav1.OwnerReference{
				{APIVersion: version, Kind: "IPPool", Name: pool.Name, UID: pool.UID},
				{APIVersion: version, Kind: "IPClaim", Name: claim.Name, UID: claim.UID},
			},
		},
		Spec: spec,
	}
	if err := c.Create(ctx, address); err != nil {
		return err
	}
	claim.Status.Address = &corev1.ObjectReference{Name: address.Name, Namespace: address.Namespace}
	return c.Status().Update(ctx, claim)
}
