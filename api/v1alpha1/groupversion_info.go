// Package v1alpha1 holds the kinds of the group butler.butlerlabs.dev.
// +kubebuilder:object:generate=true
// +groupName=butler.butlerlabs.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every kind of this package.
	GroupVersion = schema.GroupVersion{Group: "butler.butlerlabs.dev", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(func(s *runtime.Scheme) error {
		s.AddKnownTypes(GroupVersion, &NetworkPool{}, &NetworkPoolList{}, &GlobalNetworkPool{}, &GlobalNetworkPoolList{},
			&IPAllocation{}, &IPAllocationList{}, &IPLease{}, &IPLeaseList{}, &ProviderConfig{}, &ProviderConfigList{},
			&ClusterCIDR{}, &ClusterCIDRList{})
		metav1.AddToGroupVersion(s, GroupVersion)
		return nil
	})

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)
