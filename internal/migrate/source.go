package migrate

import (
	"cmp"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Source names a pool of the in-cluster provider. Namespace is empty for a global one.
type Source struct{ Kind, Namespace, Name string }

// String is how a person writes it.
func (s Source) String() string {
	if s.Namespace == "" {
		return s.Kind + " " + s.Name
	}
	return s.Kind + " " + s.Namespace + "/" + s.Name
}

func (s Source) ref() ipamv1.IPPoolReference {
	return ipamv1.IPPoolReference{APIGroup: incluster.GroupVersion.Group, Kind: s.Kind, Name: s.Name}
}

// target is the pool of ours that it becomes.
func (s Source) target(name string) pools.Key {
	key := pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: s.Namespace, Name: cmp.Or(name, s.Name)}
	if s.Kind == incluster.GlobalIPPool {
		key.Kind, key.Namespace = v1alpha1.GlobalNetworkPoolKind, ""
	}
	return key
}

// sourcePool is what is read of it.
type sourcePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              incluster.Spec `json:"spec"`
}

// get reads the pool.
func (s Source) get(ctx context.Context, from client.Reader) (*sourcePool, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(incluster.GroupVersion.WithKind(s.Kind)) // stored in this version: its webhook is not needed
	err := from.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Name}, u)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("there is no kind %s here: the CRDs of the in-cluster provider are not installed", s.Kind)
	}
	if apierrors.IsNotFound(err) && s.Namespace != "" {
		return nil, fmt.Errorf("%s does not exist; is it a global one? Then write global/%s", s, s.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", s, err)
	}
	out := &sourcePool{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("reading %s: %w", s, err)
	}
	return out, nil
}
