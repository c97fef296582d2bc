package failuredomain

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// store is an API server that has owners of objects by kind and name, and records what is read.
type store struct {
	client.Reader

	owners map[string][]metav1.OwnerReference
	domain string
	read   []string
	err    error
}

var errDenied = errors.New("denied")

func (s *store) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	kind := "Machine"
	if partial, ok := o.(*metav1.PartialObjectMetadata); ok {
		kind = partial.Kind
	}
	s.read = append(s.read, kind)
	owners, ok := s.owners[kind+"/"+key.Name]
	switch {
	case s.err != nil:
		return s.err
	case !ok:
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	o.SetUID(types.UID("uid-" + key.Name))
	o.SetOwnerReferences(owners)
	if m, ok := o.(*clusterv1.Machine); ok {
		m.Spec.FailureDomain = s.domain
	}
	return nil
}

func infra(kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "infrastructure.cluster.x-k8s.io/v1beta1", Kind: kind, Name: name, UID: types.UID("uid-" + name)}
}

func machine(name string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: types.UID("uid-" + name)}
}

// TestFindMachine checks that the Machine is found through the objects that each consumer creates (U54), with few reads
// and no others.
func TestFindMachine(t *testing.T) {
	chain := func(n int) map[string][]metav1.OwnerReference {
		out := map[string][]metav1.OwnerReference{}
		for i := range n {
			out[fmt.Sprintf("X/x%d", i)] = []metav1.OwnerReference{infra("X", fmt.Sprintf("x%d", i+1))}
		}
		return out
	}
	for name, tc := range map[string]struct {
		owners         []metav1.OwnerReference
		ownersByObject map[string][]metav1.OwnerReference
		err            error
		want           string
		fails          string
		reads          string
	}{
		"CAPV": {
			owners: []metav1.OwnerReference{infra("VSphereVM", "vm")},
			ownersByObject: map[string][]metav1.OwnerReference{
				"VSphereVM/vm": {infra("VSphereMachine", "vsm")}, "VSphereMachine/vsm": {machine("m")}, "Machine/m": nil,
			},
			want: "m", reads: "VSphereVM VSphereMachine Machine",
		},
		"CAPM3": {
			owners: []metav1.OwnerReference{infra("Metal3Data", "data")},
			ownersByObject: map[string][]metav1.OwnerReference{
				"Metal3Data/data":       {infra("Metal3DataTemplate", "template"), infra("Metal3DataClaim", "claim"), infra("Metal3Machine", "m3m")},
				"Metal3DataClaim/claim": {infra("Metal3Machine", "m3m")}, "Metal3Machine/m3m": {machine("m")}, "Machine/m": nil,
			},
			want: "m", reads: "Metal3Data Metal3DataClaim Metal3Machine Machine",
		},
		"CAPMOX": {
			owners:         []metav1.OwnerReference{infra("ProxmoxMachine", "pm")},
			ownersByObject: map[string][]metav1.OwnerReference{"ProxmoxMachine/pm": {infra("ProxmoxCluster", "c"), machine("m")}, "Machine/m": nil},
			want:           "m", reads: "ProxmoxMachine Machine",
		},
		"a Machine itself": {owners: []metav1.OwnerReference{machine("m")}, ownersByObject: map[string][]metav1.OwnerReference{"Machine/m": nil}, want: "m", reads: "Machine"},
		"OpenShift":        {owners: []metav1.OwnerReference{{APIVersion: "machine.openshift.io/v1beta1", Kind: "Machine", Name: "m", UID: "uid-m"}}},
		"no owner":         {},
		"no Machine above": {
			owners:         []metav1.OwnerReference{infra("OpenStackServer", "bastion")},
			ownersByObject: map[string][]metav1.OwnerReference{"OpenStackServer/bastion": {infra("OpenStackCluster", "c")}}, reads: "OpenStackServer",
		},
		"in a circle":    {owners: []metav1.OwnerReference{infra("X", "x0")}, ownersByObject: map[string][]metav1.OwnerReference{"X/x0": {infra("X", "x0")}}, reads: strings.TrimSpace(strings.Repeat("X ", maxOwnerReads))},
		"without an end": {owners: []metav1.OwnerReference{infra("X", "x0")}, ownersByObject: chain(50), reads: strings.TrimSpace(strings.Repeat("X ", maxOwnerReads))},
		"gone":           {owners: []metav1.OwnerReference{infra("VSphereVM", "vm")}, fails: "its owner VSphereVM ns/vm does not exist; correct the owner reference, also where it was restored and has another UID, or delete the claim", reads: "VSphereVM"},
		"another of its name": {
			owners:         []metav1.OwnerReference{{APIVersion: infra("", "").APIVersion, Kind: "VSphereVM", Name: "vm", UID: "the one before"}},
			ownersByObject: map[string][]metav1.OwnerReference{"VSphereVM/vm": {machine("m")}}, fails: "its owner VSphereVM ns/vm does not exist", reads: "VSphereVM",
		},
		"denied": {owners: []metav1.OwnerReference{infra("VSphereVM", "vm")}, err: errDenied, fails: "its owner VSphereVM ns/vm cannot be read: denied; see that the manager", reads: "VSphereVM"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{owners: tc.ownersByObject, domain: "zone-a", err: tc.err}
			got, err := (&Finder{Live: s}).FindMachine(t.Context(), "ns", grants.MachineOwners(tc.owners))
			want := grants.Machine{}
			if tc.want != "" {
				want = grants.Machine{Name: types.NamespacedName{Namespace: "ns", Name: tc.want}, FailureDomain: "zone-a"}
			}
			if got != want || (err != nil) != (tc.fails != "") || (err != nil && !strings.HasPrefix(err.Error(), tc.fails)) {
				t.Errorf("%+v, %v", got, err)
			}
			if reads := strings.Join(s.read, " "); reads != tc.reads {
				t.Errorf("reads %q, want %q", reads, tc.reads)
			}
		})
	}
}

// TestCorrectedOwnerIsFound checks that the step that the message names helps a claim whose owner has another
// UID, as after a restore, or cannot be read (W29).
func TestCorrectedOwnerIsFound(t *testing.T) {
	s := &store{owners: map[string][]metav1.OwnerReference{"VSphereVM/vm": {machine("m")}, "Machine/m": nil}, domain: "zone-a"}
	find := func(ref metav1.OwnerReference) (grants.Machine, error) {
		return (&Finder{Live: s}).FindMachine(t.Context(), "ns", grants.MachineOwners([]metav1.OwnerReference{ref}))
	}
	ref := infra("VSphereVM", "vm")
	ref.UID = "before the restore"
	if _, err := find(ref); err == nil || !strings.Contains(err.Error(), "correct the owner reference, also where it was restored and has another UID") {
		t.Error(err)
	}
	ref.UID = "uid-vm"
	if got, err := find(ref); err != nil || got.Name.Name != "m" {
		t.Errorf("%+v, %v", got, err)
	}
	s.err = errDenied
	if _, err := find(ref); err == nil || !strings.Contains(err.Error(), "see that the manager has the rights of its component failure-domains") {
		t.Error(err)
	}
	s.err = nil
	if _, err := find(ref); err != nil {
		t.Error(err)
	}
}
