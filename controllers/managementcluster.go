package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/controllers/lookup"
)

// managementClusterUID returns the UID of the namespace kube-system, which identifies a cluster; empty if it may not be
// read.
func managementClusterUID(ctx context.Context, live client.Reader) (string, error) {
	ns := lookup.NamespaceMetadata()
	err := live.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
		log.FromContext(ctx).Info("Cannot read the namespace kube-system: cannot detect pools that came from another management cluster", "reason", err.Error())
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading the namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}
