package webhooks

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// TestValidateUpdate checks which updates of a pool are rejected, and which lead to a warning (U23).
func TestValidateUpdate(t *testing.T) {
	whole, half, broken := spec{CIDR: "10.0.0.0/24"}, spec{CIDR: "10.0.0.0/25"}, spec{CIDR: "10.0.0.0/24", Gateway: "10.9.0.1"}
	high := []poolspec.Holder{{Kind: "IPAddressClaim", Namespace: "ns", Name: "a", Range: netipx.MustParseIPRange("10.0.0.200-10.0.0.200")}}
	holder := func(name, address string, prefix int32, gateway string) poolspec.Holder {
		a := netip.MustParseAddr(address)
		return poolspec.Holder{Kind: "IPAddressClaim", Namespace: "ns", Name: name, Range: netipx.IPRangeFrom(a, a), Network: poolspec.Network{Prefix: prefix, Gateway: gateway}}
	}
	keep := append(slices.Clone(high), holder("a", "10.0.0.200", 24, "10.0.0.1"), holder("b", "10.0.0.201", 24, "10.0.0.1"), holder("c", "10.0.0.202", 24, "10.0.0.2"))
	tests := map[string]struct {
		reason   string
		old, new spec
		edit     func(*v1alpha1.NetworkPool)
		holders  []poolspec.Holder
		asked    int
		want     []string // the fields that are rejected; none: allowed
		names    string   // part of the message
		warned   []string
	}{
		"CutsOff": {
			reason: "who would lose an address is named",
			old:    whole, new: half, holders: high, asked: 1,
			want: []string{"spec"}, names: "10.0.0.200 (IPAddressClaim ns/a)",
		},
		"CutsOffNobody": {
			reason: "what no claim holds may go",
			old:    whole, new: spec{CIDR: "10.0.0.128/25"}, holders: high, asked: 1,
		},
		"Repairs": {
			reason: "of a spec that could not be served, everything in use counts",
			old:    broken, new: half, holders: high, asked: 1,
			want: []string{"spec"}, names: "10.0.0.200 (IPAddressClaim ns/a)",
		},
		"Widens": {
			reason: "a change that takes nothing away, and leaves the networks as they are, is not looked up",
			old:    spec{Addresses: []string{"10.0.0.0/24"}}, new: spec{Addresses: []string{"10.0.0.0/24", "10.0.1.0/24"}}, holders: keep,
		},
		"WidensTheNetwork": {
			reason: "an IPAddress is not changed: it keeps the prefix length of the smaller network",
			old:    half, new: whole, holders: []poolspec.Holder{holder("a", "10.0.0.5", 25, "")}, asked: 1,
			warned: []string{"1 address in use keeps the prefix length 25, such as 10.0.0.5 (IPAddressClaim ns/a): a machine gets the values of the spec when it is recreated"},
		},
		"ChangesTheGateway": {
			reason: "a claim that has what the new spec gives is not counted, nor is what has no IPAddress",
			old:    spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}, new: spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.2"}, holders: keep, asked: 1,
			warned: []string{"2 addresses in use keep the gateway 10.0.0.1, such as 10.0.0.200 (IPAddressClaim ns/a): a machine gets the values of the spec when it is recreated"},
		},
		"RemovesTheGateway": {
			reason: "each value that is kept is reported",
			old:    spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}, new: whole, holders: keep, asked: 1,
			warned: []string{
				"2 addresses in use keep the gateway 10.0.0.1, such as 10.0.0.200 (IPAddressClaim ns/a): a machine gets the values of the spec when it is recreated",
				"1 address in use keeps the gateway 10.0.0.2, such as 10.0.0.202 (IPAddressClaim ns/c): a machine gets the values of the spec when it is recreated",
			},
		},
		"AddsAGateway": {
			reason: "what has none keeps none",
			old:    whole, new: spec{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}, holders: []poolspec.Holder{holder("a", "10.0.0.5", 24, "")}, asked: 1,
			warned: []string{"1 address in use keeps no gateway, such as 10.0.0.5 (IPAddressClaim ns/a): a machine gets the values of the spec when it is recreated"},
		},
		"RemovesThePrefix": {
			reason: "without it an address of a range is alone",
			old:    spec{Addresses: []string{"10.0.0.5-10.0.0.9"}, Prefix: ptr.To[int32](24)}, new: spec{Addresses: []string{"10.0.0.5-10.0.0.9"}}, holders: []poolspec.Holder{holder("a", "10.0.0.5", 24, "")}, asked: 1,
			warned: []string{"1 address in use keeps the prefix length 24, such as 10.0.0.5 (IPAddressClaim ns/a): a machine gets the values of the spec when it is recreated",
				"claims get 10.0.0.5 with the prefix length 32 and no gateway, because spec.addresses does not say which network it is in; " +
					"set spec.prefix to the length of that network, and spec.gateway if it has one, unless the addresses are for load balancers"},
		},
		"ChangesASubnet": {
			reason: "its addresses keep its gateway, others are not its",
			old:    spec{CIDR: "10.0.0.0/23", Gateway: "10.0.1.1", Subnets: []v1alpha1.Subnet{{CIDR: "10.0.0.0/24", Gateway: "10.0.0.1"}}},
			new:    spec{CIDR: "10.0.0.0/23", Gateway: "10.0.1.1"}, asked: 1,
			holders: []poolspec.Holder{holder("a", "10.0.0.5", 24, "10.0.0.1"), holder("b", "10.0.1.5", 23, "10.0.1.1")},
			warned:  []string{"1 address in use keeps the prefix length 24 and the gateway 10.0.0.1, such as 10.0.0.5 (IPAddressClaim ns/a): a machine gets the values of the spec when it is recreated"},
		},
		"AddsASubnetElsewhere": {
			reason: "no claim is in it", holders: keep,
			old: spec{Addresses: []string{"10.0.0.0/24"}}, new: spec{Addresses: []string{"10.0.0.0/24", "10.0.1.0/24"}, Subnets: []v1alpha1.Subnet{{CIDR: "10.0.1.0/24", Gateway: "10.0.1.1"}}},
		},
		"KeepsWhatIsFree": {
			reason: "a preAllocation is looked up", old: whole, holders: high, asked: 1,
			new: spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"vip": "10.0.0.9"}},
		},
		"KeepsWhatIsInUse": {
			reason: "its claim waits until the other one is gone", old: spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"old": "10.0.0.8"}}, holders: high, asked: 1,
			new:    spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.0.9", "old": "10.0.0.8", "vip": "10.0.0.200"}},
			warned: []string{"spec.preAllocations[vip]: 10.0.0.200 is held by IPAddressClaim ns/a; a claim named vip gets it when that is released"},
		},
		"KeepsWhatItsNameHas": {
			reason: "that is what it is for", old: whole, holders: high, asked: 1,
			new: spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"a": "10.0.0.200"}},
		},
		"Invalid": {
			reason: "a spec that cannot be served is refused before anything is looked up",
			old:    whole, new: broken, holders: high,
			want: []string{"spec.gateway"}, names: "10.9.0.1",
		},
		"Metadata": {
			reason: "labels, finalizers and status are not the spec",
			old:    whole, new: whole, holders: high,
			edit: func(p *v1alpha1.NetworkPool) {
				p.Labels, p.Finalizers, p.Status.TotalIPs = map[string]string{"a": "b"}, []string{v1alpha1.PoolFinalizer}, 254
			},
		},
		"MetadataOfInvalid": {
			reason: "a pool older than the rules can still be labelled",
			old:    broken, new: broken, holders: high,
			edit: func(p *v1alpha1.NetworkPool) { p.Labels = map[string]string{"a": "b"} },
		},
		"Deleting": {
			reason: "nothing may keep the finalizer of a pool that is being deleted, whatever its spec",
			old:    whole, new: broken, holders: high,
			edit: func(p *v1alpha1.NetworkPool) { p.DeletionTimestamp = &metav1.Time{} },
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			was, next, use := pool("p", tc.old), pool("p", tc.new), &fakeHolderLister{holders: tc.holders}
			if tc.edit != nil {
				tc.edit(next)
			}
			warnings, err := (&PoolValidator[*v1alpha1.NetworkPool]{Holders: use, PoolReader: stored(t, was)}).ValidateUpdate(t.Context(), was, next)
			if !slices.Equal(warnings, tc.warned) || len(use.asked) != tc.asked {
				t.Errorf("%s: warnings %v, %d look-ups, want %d", tc.reason, warnings, len(use.asked), tc.asked)
			}
			for _, p := range use.asked {
				if p != v1alpha1.Pool(was) {
					t.Error("holders are those of the stored pool: its status says what is in flight")
				}
			}
			if tc.want == nil {
				if err != nil {
					t.Errorf("%s: refused: %v", tc.reason, err)
				}
				return
			}
			if diff := cmp.Diff(refusal{v1alpha1.NetworkPoolKind, "p", tc.want}, refusalOf(t, err)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
			if !strings.Contains(err.Error(), tc.names) {
				t.Errorf("%s: want %q in %v", tc.reason, tc.names, err)
			}
		})
	}
}

// TestUpdateLookupOfAPreAllocationFails checks that a failed check that could only lead to a warning does not keep a
// pool from being changed.
func TestUpdateLookupOfAPreAllocationFails(t *testing.T) {
	v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{err: errors.New("the API server is down")}, PoolReader: stored(t)}
	warnings, err := v.ValidateUpdate(t.Context(), pool("p", spec{CIDR: "10.0.0.0/24"}), pool("p", spec{CIDR: "10.0.0.0/24", PreAllocations: map[string]string{"vip": "10.0.0.9"}}))
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "could not be checked whether another name has an address of spec.preAllocations, or which claims keep another gateway or prefix length: the API server is down") {
		t.Errorf("%v, %v", warnings, err)
	}
}

// TestUpdateLookupFails checks that a webhook that cannot list the holders does not let their addresses be cut off.
func TestUpdateLookupFails(t *testing.T) {
	down := errors.New("the API server is down")
	v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{err: down}, PoolReader: stored(t)}
	_, err := v.ValidateUpdate(t.Context(), pool("p", spec{CIDR: "10.0.0.0/24"}), pool("p", spec{CIDR: "10.0.0.0/25"}))
	if !errors.Is(err, down) || apierrors.IsInvalid(err) {
		t.Errorf("want the error, and not that the pool is invalid, got %v", err)
	}
}

func TestUpdateWarns(t *testing.T) {
	was, next := pool("p", spec{CIDR: "10.0.0.0/24"}), pool("p", spec{CIDR: "10.0.0.0/23"})
	v := &PoolValidator[*v1alpha1.NetworkPool]{Holders: &fakeHolderLister{}, PoolReader: stored(t, was, pool("q", spec{CIDR: "10.0.1.0/24"}))}
	warnings, err := v.ValidateUpdate(t.Context(), was, next)
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "NetworkPool ns/q has 10.0.1.0/24 too") {
		t.Errorf("a pool that grows into another is not reported, got %v, %v", warnings, err)
	}
}
