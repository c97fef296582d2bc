// Package failuredomain finds the Machine of a claim. Infrastructure providers create claims for objects of their
// own, which the Machine owns directly or through another object: VSphereVM and VSphereMachine, Metal3Data and
// Metal3Machine, OpenStackServer and OpenStackMachine. The package reads only the objects on the way to the Machine.
package failuredomain

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get
// +kubebuilder:rbac:groups=infrastructure.cluster.x-k8s.io,resources=*,verbs=get

// maxOwnerReads bounds the number of objects to read on the way to a Machine. For a Metal3Data there are three.
const maxOwnerReads = 8

// Finder finds Machines.
type Finder struct {
	// Live reads from the API server: an object is read once or twice in its life, so nothing is watched.
	Live client.Reader
}

// FindMachine returns the Machine that owners lead to, the zero value if they lead to none.
func (f *Finder) FindMachine(ctx context.Context, namespace string, owners []metav1.OwnerReference) (grants.Machine, error) {
	for next, read := owners, 0; len(next) > 0; read++ {
		if i := slices.IndexFunc(next, grants.IsMachine); i >= 0 {
			return f.readMachine(ctx, namespace, next[i])
		}
		if read == maxOwnerReads {
			return grants.Machine{}, nil
		}
		found, err := f.readOwners(ctx, namespace, next[0])
		if err != nil {
			return grants.Machine{}, err
		}
		next = append(next[1:], found...)
	}
	return grants.Machine{}, nil
}

func (f *Finder) readMachine(ctx context.Context, namespace string, ref metav1.OwnerReference) (grants.Machine, error) {
	m := &clusterv1.Machine{}
	if err := f.readOwner(ctx, namespace, ref, m); err != nil {
		return grants.Machine{}, err
	}
	return grants.Machine{Name: client.ObjectKeyFromObject(m), FailureDomain: m.Spec.FailureDomain}, nil
}

func (f *Finder) readOwners(ctx context.Context, namespace string, ref metav1.OwnerReference) ([]metav1.OwnerReference, error) {
	o := &metav1.PartialObjectMetadata{}
	o.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
	if err := f.readOwner(ctx, namespace, ref, o); err != nil {
		return nil, err
	}
	return grants.MachineOwners(o.OwnerReferences), nil
}

// readOwner reads an owner, and returns an error if the object of that name has another UID.
func (f *Finder) readOwner(ctx context.Context, namespace string, ref metav1.OwnerReference, into client.Object) error {
	key := types.NamespacedName{Namespace: namespace, Name: ref.Name}
	err := f.Live.Get(ctx, key, into)
	switch {
	case apierrors.IsNotFound(err), err == nil && into.GetUID() != ref.UID:
		return fmt.Errorf("its owner %s %s does not exist; correct the owner reference, also where it was restored and has another UID, or delete the claim", ref.Kind, key)
	case err != nil:
		return fmt.Errorf("its owner %s %s cannot be read: %w; see that the manager has the rights of its component failure-domains", ref.Kind, key, err)
	}
	return nil
}
