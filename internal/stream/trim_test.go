package stream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// meta returns metadata with every field set, and managed fields as a manager leaves them.
func meta() metav1.ObjectMeta {
	then := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Local())
	seconds := int64(30)
	var fields metav1.FieldsV1
	fields.SetRawBytes([]byte(`{"f:metadata":{"f:annotations":{".":{},"f:butler.butlerlabs.dev/address":{}},"f:finalizers":{".":{},"v:\"ipam.cluster.x-k8s.io/ReleaseAddress\"":{}}}}`))
	entry := metav1.ManagedFieldsEntry{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &then, FieldsType: "FieldsV1", FieldsV1: &fields}
	return metav1.ObjectMeta{
		Name: "name", GenerateName: "na", Namespace: "ns", UID: "uid", ResourceVersion: "7", Generation: 3,
		CreationTimestamp: then, DeletionTimestamp: &then, DeletionGracePeriodSeconds: &seconds,
		Labels: map[string]string{"l": "1"}, Annotations: map[string]string{"a": "2"}, Finalizers: []string{"f"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "K", Name: "o", UID: "u"}},
		ManagedFields:   []metav1.ManagedFieldsEntry{entry, entry, entry},
	}
}

func claimObject() *ipamv1.IPAddressClaim {
	c := &ipamv1.IPAddressClaim{ObjectMeta: meta()}
	c.Spec = ipamv1.IPAddressClaimSpec{ClusterName: "c", PoolRef: ipamv1.IPPoolReference{APIGroup: "g", Kind: "K", Name: "p"}}
	c.Status.AddressRef.Name = "name"
	c.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True"}}
	return c
}

func TestOnlyManagedFieldsAreDropped(t *testing.T) {
	held := &ipamv1.IPAddress{ObjectMeta: meta(), Spec: ipamv1.IPAddressSpec{Address: "10.0.0.1", Gateway: "10.0.0.254"}}
	block := &v1alpha1.IPAllocation{ObjectMeta: meta(), Spec: v1alpha1.IPAllocationSpec{Type: v1alpha1.NodesAllocation}}
	block.Status.CIDR = "10.0.0.0/30"
	t.Run("claim", func(t *testing.T) { decodes(t, claimObject(), toIPAddressClaim) })
	t.Run("address", func(t *testing.T) { decodes(t, held, toIPAddress) })
	t.Run("allocation", func(t *testing.T) { decodes(t, block, toIPAllocation) })
}

// decodes checks that an object is decoded as it was, except for its managed fields.
func decodes[L, O any](t *testing.T, obj client.Object, full func(*L) O) {
	t.Helper()
	text, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var decoded L
	if err := jsonv2.Unmarshal(text, &decoded); err != nil {
		t.Fatal(err)
	}
	obj.SetManagedFields(nil)
	if d := cmp.Diff(obj, any(new(full(&decoded)))); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// BenchmarkClaims measures the cost of one claim of a list.
func BenchmarkClaims(b *testing.B) {
	const n = 1000
	text, err := json.Marshal(claimObject())
	if err != nil {
		b.Fatal(err)
	}
	body := fmt.Appendf(nil, `{"items":[%s%s]}`, text, strings.Repeat(","+string(text), n-1))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		seen := 0
		if _, err := decodeList(newJSONDecoder(bytes.NewReader(body)), toIPAddressClaim, func(*ipamv1.IPAddressClaim) { seen++ }); err != nil || seen != n {
			b.Fatal(seen, err)
		}
	}
}
