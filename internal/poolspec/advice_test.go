package poolspec

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// TestRefusedSpecErrorsNameStepsThatHelp checks that a spec that is changed as its error advises is valid (W29).
func TestRefusedSpecErrorsNameStepsThatHelp(t *testing.T) {
	subnets := func(s ...v1alpha1.Subnet) func(*spec) { return func(o *spec) { o.Subnets = s } }
	pin := func(address string) func(*spec) {
		return func(o *spec) { o.PreAllocations = map[string]string{"a": address} }
	}
	of := func(f ...func(*spec)) []func(*spec) { return f }
	for name, tc := range map[string]struct {
		spec        spec
		wantMessage string
		do          []func(*spec) // alternatives
	}{
		"nothing": {spec: spec{}, wantMessage: "set cidr, addresses, or both", do: of(
			func(o *spec) { o.CIDR = "10.0.0.0/24" },
			func(o *spec) { o.Addresses = []string{"10.0.0.1"} },
			func(o *spec) { o.CIDR, o.Addresses = "10.0.0.0/24", []string{"10.0.1.1"} },
		)},
		"order": {spec: spec{CIDR: "10.0.0.0/24", AllocationOrder: "Random"}, wantMessage: "leave it out, or write BestFit or LeastRecentlyUsed", do: of(
			func(o *spec) { o.AllocationOrder = "" },
			func(o *spec) { o.AllocationOrder = "BestFit" },
			func(o *spec) { o.AllocationOrder = "LeastRecentlyUsed" },
		)},
		"host bits": {spec: spec{CIDR: "10.0.0.5/24"}, wantMessage: "write 10.0.0.0/24 for the prefix or 10.0.0.5 for the address", do: of(
			func(o *spec) { o.CIDR = "10.0.0.0/24" },
			func(o *spec) { o.CIDR, o.Addresses = "", []string{"10.0.0.5"} },
		)},
		"a zone":             {spec: spec{Addresses: []string{"fe80::1%eth0"}}, wantMessage: "has a zone: write fe80::1", do: of(func(o *spec) { o.Addresses = []string{"fe80::1"} })},
		"IPv4 as IPv6":       {spec: spec{Addresses: []string{"::ffff:10.0.0.1"}}, wantMessage: "write 10.0.0.1", do: of(func(o *spec) { o.Addresses = []string{"10.0.0.1"} })},
		"two families":       {spec: spec{Addresses: []string{"10.0.0.1", "fd00::1"}}, wantMessage: "use two pools", do: of(func(o *spec) { o.Addresses = o.Addresses[:1] }, func(o *spec) { o.Addresses = o.Addresses[1:] })},
		"reserved elsewhere": {spec: spec{CIDR: "10.0.0.0/24", Reserved: reserved("10.0.1.0/28")}, wantMessage: "correct or remove the entry", do: of(func(o *spec) { o.Reserved = reserved("10.0.0.0/28") }, func(o *spec) { o.Reserved = nil })},
		"tenant reversed":    {spec: spec{CIDR: "10.0.0.0/24", TenantAllocation: tenant("10.0.0.9", "10.0.0.1")}, wantMessage: "write the lower address as start", do: of(func(o *spec) { o.TenantAllocation = tenant("10.0.0.1", "10.0.0.9") })},
		"tenant elsewhere":   {spec: spec{CIDR: "10.0.0.0/24", TenantAllocation: tenant("10.0.0.9", "10.0.1.1")}, wantMessage: "choose an address of the pool", do: of(func(o *spec) { o.TenantAllocation = tenant("10.0.0.9", "10.0.0.99") })},
		"a prefix too short": {spec: spec{CIDR: "10.0.0.0/24", AllocationPrefixLength: ptr.To[int32](23)}, wantMessage: "choose a longer one", do: of(func(o *spec) { o.AllocationPrefixLength = ptr.To[int32](24) })},
		"one subnet twice":   {spec: spec{CIDR: "10.0.0.0/24", Subnets: []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}, {CIDR: "10.0.0.0/24"}}}, wantMessage: "remove one of the two entries", do: of(subnets(v1alpha1.Subnet{CIDR: "10.0.0.0/24"}))},
		"a gateway of none":  {spec: spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1", Subnets: []v1alpha1.Subnet{{CIDR: "10.0.0.0/24"}}}, wantMessage: "set the gateway there", do: of(func(o *spec) { o.Gateway, o.Subnets[0].Gateway = "", "10.0.0.1" })},
		"a gateway elsewhere": {spec: spec{CIDR: "10.0.2.0/24", Prefix: ptr.To[int32](23), Gateway: "10.0.1.1"}, wantMessage: "correct prefix, or describe several networks with subnets", do: of(
			func(o *spec) { o.Prefix = ptr.To[int32](22) },
			func(o *spec) {
				o.Gateway, o.Prefix = "", nil
				o.Subnets = []v1alpha1.Subnet{{CIDR: "10.0.0.0/22", Gateway: "10.0.1.1"}}
			},
		)},
		"a gateway of IPv6 elsewhere": {spec: spec{CIDR: "fd00:0:0:1::/64", Gateway: "fd00::1"}, wantMessage: "correct prefix, describe several networks with subnets, or use a link-local gateway (fe80::/10)", do: of(
			func(o *spec) { o.Prefix = ptr.To[int32](62) },
			func(o *spec) { o.Gateway, o.Subnets = "", []v1alpha1.Subnet{{CIDR: "fd00::/62", Gateway: "fd00::1"}} },
			func(o *spec) { o.Gateway = "fe80::1" },
		)},
		"many networks": {spec: spec{CIDR: "fd00::/32", Prefix: ptr.To[int32](64)}, wantMessage: "use a shorter prefix, or allocateReservedIPAddresses", do: of(
			func(o *spec) { o.Prefix = ptr.To[int32](48) },
			func(o *spec) { o.AllocateReservedIPAddresses = true },
		)},
		"one pin twice":         {spec: spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.0.9", "b": "10.0.0.9"}}, wantMessage: "give each claim an address of its own", do: of(pin("10.0.0.9"))},
		"a pin of no prefix":    {spec: spec{CIDR: "10.0.0.0/24", AllocationPrefixLength: ptr.To[int32](28), PreAllocations: map[string]string{"a": "10.0.0.9"}}, wantMessage: "write 10.0.0.0", do: of(pin("10.0.0.0"))},
		"a pin elsewhere":       {spec: spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.1.9"}}, wantMessage: "add it to addresses, or choose one that is inside", do: of(pin("10.0.0.9"), func(o *spec) { o.Addresses = []string{"10.0.1.9"} })},
		"a pin of the gateway":  {spec: spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1", PreAllocations: map[string]string{"a": "10.0.0.1"}}, wantMessage: "choose another", do: of(pin("10.0.0.2"))},
		"a pin that hosts lack": {spec: spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.0.0"}}, wantMessage: "choose another, or set allocateReservedIPAddresses", do: of(pin("10.0.0.2"), func(o *spec) { o.AllocateReservedIPAddresses = true })},
		"a zone too small": {spec: spec{CIDR: "10.0.0.0/24", AllocationPrefixLength: ptr.To[int32](28), Subnets: []v1alpha1.Subnet{inDomains("10.0.0.0/29", "a")}}, wantMessage: "remove the failure domains, or use a larger subnet", do: of(
			subnets(v1alpha1.Subnet{CIDR: "10.0.0.0/29"}), subnets(inDomains("10.0.0.0/27", "a")),
		)},
	} {
		t.Run(name, func(t *testing.T) {
			_, errs := Compile(&tc.spec)
			if len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), tc.wantMessage) {
				t.Fatalf("its error is %v", errs)
			}
			for i, do := range tc.do {
				changed := tc.spec.DeepCopy()
				do(changed)
				if _, errs := Compile(changed); len(errs) > 0 {
					t.Errorf("after step %d its error is %v", i, errs)
				}
			}
		})
	}
}

// TestEmptySpecMessagesNameStepsThatHelp checks the advice for a spec that leaves nothing to hand out, and for a
// change that cuts claims off (W29).
func TestEmptySpecMessagesNameStepsThatHelp(t *testing.T) {
	none := spec{CIDR: "10.0.0.0/28", Reserved: reserved("10.0.0.0/28")}
	one := spec{Addresses: []string{"10.0.0.9"}, Gateway: "10.0.0.9", Prefix: ptr.To[int32](24)}
	for _, of := range []spec{none, one} {
		more, fewer := of.DeepCopy(), of.DeepCopy()
		more.Addresses = append(more.Addresses, "10.0.0.20")
		fewer.Reserved, fewer.Gateway = nil, ""
		for _, changed := range []*spec{more, fewer} {
			layout, errs := Compile(changed)
			if len(errs) > 0 || NothingAllocatableMessage(layout, AdviceAddAddresses) != "" {
				t.Errorf("%+v: %v", changed, errs)
			}
		}
	}
	old, next, kept := spec{CIDR: "10.0.0.0/24"}, spec{CIDR: "10.0.0.0/25"}, spec{CIDR: "10.0.0.0/25", Addresses: []string{"10.0.0.200"}}
	cuts := func(next spec, holders ...Holder) string {
		var out []string
		for _, err := range ValidateNoCutOff(mustCompile(t, old), mustCompile(t, next), holders) {
			out = append(out, err.Detail)
		}
		return strings.Join(out, "; ")
	}
	if message := cuts(next, holder("b", "10.0.0.200")); !strings.Contains(message, "delete their claims first, or keep the addresses in the pool") {
		t.Error(message)
	}
	if message := cuts(next); message != "" {
		t.Errorf("without the claim: %s", message)
	}
	if message := cuts(kept, holder("b", "10.0.0.200")); message != "" {
		t.Errorf("with the address: %s", message)
	}
}
