package cli

import (
	"testing"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	"k8s.io/utils/ptr"
)

// The import from Metal3's IPAM dies at every write, and is resumed or rolled back, as the one from the in-cluster provider:
// U60, U61.
func TestImportMetal3(t *testing.T) {
	served := diesAnywhere(t, func(t *testing.T) moving { return newMetal3World(t) })
	t.Run("IPv6", func(t *testing.T) {
		gateway := ptr.To(m3ipamv1.IPAddressStr("fe80::1"))
		w := newMetal3WorldOf(t, newNamespace(t, nil), m3ipamv1.IPPoolSpec{
			NamePrefix: "prov", Prefix: 64, Gateway: gateway, Pools: []m3ipamv1.Pool{{Subnet: ptr.To(m3ipamv1.IPSubnetStr("fd00:60::/64"))}},
		}, map[string]m3ipamv1.IPAddressSpec{"workers-0": {Address: "fd00:60::1", Prefix: 64, Gateway: gateway}})
		if _, err := w.move(k8s).Apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.expectMoved(t)
		served = append(served, w)
	})
	t.Run("served", func(t *testing.T) { serve(t, served) })
}
