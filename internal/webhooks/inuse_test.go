package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// address returns the IPAddress that the claim ns/claim has of a pool.
func address(of v1alpha1.Pool, claim, ip string) *ipamv1.IPAddress {
	return &ipamv1.IPAddress{
		// The names differ only where a user created the object: the holder is the claim.
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "of-" + claim},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: claim},
			PoolRef:  ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: kindForPool(of), Name: of.GetName()},
			Address:  ip,
		},
	}
}

// block returns an IPAllocation of a pool, with a record if that is not empty.
func block(of v1alpha1.Pool, name, record string) *v1alpha1.IPAllocation {
	o := &v1alpha1.IPAllocation{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	o.Spec.PoolRef = v1alpha1.PoolReference{Kind: kindForPool(of), Name: of.GetName()}
	if record != "" {
		o.Annotations, o.Finalizers = map[string]string{v1alpha1.AddressAnnotation: record}, []string{v1alpha1.IPAllocationFinalizer}
	}
	return o
}

// withAllocatedRange sets the range in the status of an allocation.
func withAllocatedRange(o *v1alpha1.IPAllocation, first, last string) *v1alpha1.IPAllocation {
	o.Status = v1alpha1.IPAllocationStatus{Phase: v1alpha1.AllocationAllocated, StartAddress: first, EndAddress: last}
	return o
}

func at(namespace string, a *ipamv1.IPAddress) *ipamv1.IPAddress {
	a.Namespace = namespace
	return a
}

func ofGroup(group string, a *ipamv1.IPAddress) *ipamv1.IPAddress {
	a.Spec.PoolRef.APIGroup = group
	return a
}

// granting returns a pool with grants in flight.
func granting[P v1alpha1.Pool](p P, grants ...v1alpha1.Grant) P {
	p.PoolStatus().Allocator = &v1alpha1.AllocatorStatus{Holder: "h", Term: 1, InFlight: grants}
	return p
}

func grant(claim, first, last string) v1alpha1.Grant {
	return v1alpha1.Grant{Kind: "IPAddressClaim", Namespace: "ns", Name: claim, UID: claim, First: first, Last: last}
}

func texts(holders []poolspec.Holder) []string {
	var out []string
	for _, h := range holders {
		out = append(out, fmt.Sprintf("%s %s/%s %s", h.Kind, h.Namespace, h.Name, h.Range))
	}
	return out
}

// TestHoldersKnowTheirNetwork checks that a holder has the network of its IPAddress, even while its grant is still in
// flight.
func TestHoldersKnowTheirNetwork(t *testing.T) {
	p := granting(pool("p", spec{CIDR: "10.0.0.0/24"}), grant("a", "10.0.0.1", "10.0.0.1"), grant("b", "10.0.0.2", "10.0.0.2"))
	a := address(p, "a", "10.0.0.1")
	a.Spec.Prefix, a.Spec.Gateway = ptr.To[int32](24), "10.0.0.254"
	got, err := (&LiveHolderLister{Reader: stored(t, a)}).ListHolders(t.Context(), p)
	if err != nil || len(got) != 2 || got[0].Network != (poolspec.Network{Prefix: 24, Gateway: "10.0.0.254"}) || got[1].Network != (poolspec.Network{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestListHolders(t *testing.T) {
	v4 := spec{CIDR: "10.0.0.0/24"}
	prefixes := spec{CIDR: "fd00::/60", AllocationPrefixLength: ptr.To[int32](64)}
	p, q, g := pool("p", v4), pool("q", v4), global("p", v4)
	tests := map[string]struct {
		reason string
		pool   v1alpha1.Pool
		stored []client.Object
		want   []string
	}{
		"Unused": {reason: "a pool that no claim uses", pool: p},
		"Addresses": {
			reason: "the claim is named, not the IPAddress",
			pool:   p,
			stored: []client.Object{address(p, "a", "10.0.0.1"), address(p, "b", "10.0.0.2")},
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1", "IPAddressClaim ns/b 10.0.0.2-10.0.0.2"},
		},
		"OtherPools": { // W23
			reason: "other pools: by name, by kind, by namespace, by group",
			pool:   p,
			stored: []client.Object{
				address(q, "a", "10.0.0.1"), address(g, "b", "10.0.0.2"), at("other", address(p, "c", "10.0.0.3")),
				ofGroup("ipam.metal3.io", address(p, "d", "10.0.0.4")), ofGroup("", address(p, "e", "10.0.0.5")),
			},
		},
		"Global": {
			reason: "a global pool is used from all namespaces",
			pool:   g,
			stored: []client.Object{address(g, "a", "10.0.0.1"), at("other", address(g, "a", "10.0.0.2")), address(p, "b", "10.0.0.3")},
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1", "IPAddressClaim other/a 10.0.0.2-10.0.0.2"},
		},
		"Unreadable": { // W12
			reason: "an address that cannot be read takes nothing, and does not hide the others",
			pool:   p,
			stored: []client.Object{address(p, "a", "10.0.0.256"), address(p, "b", "10.0.0.2")},
			want:   []string{"IPAddressClaim ns/b 10.0.0.2-10.0.0.2"},
		},
		"Mapped": {
			reason: "an IPv4 address written as IPv6 is the IPv4 address, as it is for the allocator",
			pool:   p,
			stored: []client.Object{address(p, "a", "::ffff:10.0.0.1")},
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1"},
		},
		"Prefixes": { // U14
			reason: "where whole prefixes are handed out the prefix is held",
			pool:   pool("p", prefixes),
			stored: []client.Object{address(p, "a", "fd00:0:0:1::")},
			want:   []string{"IPAddressClaim ns/a fd00:0:0:1::-fd00::1:ffff:ffff:ffff:ffff"},
		},
		"OtherFamily": {
			reason: "an address that has no such prefix holds itself",
			pool:   pool("p", prefixes),
			stored: []client.Object{address(p, "a", "10.0.0.1")},
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1"},
		},
		"InFlight": {
			reason: "what is granted is held before its IPAddress exists",
			pool:   granting(pool("p", v4), grant("a", "10.0.0.1", "10.0.0.1"), v1alpha1.Grant{Kind: "IPAllocation", Namespace: "ns", Name: "b", First: "10.0.0.8", Last: "10.0.0.15"}),
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1", "IPAllocation ns/b 10.0.0.8-10.0.0.15"},
		},
		"Once": {
			reason: "a grant whose IPAddress exists already is named once",
			pool:   granting(pool("p", v4), grant("a", "10.0.0.1", "10.0.0.1")),
			stored: []client.Object{address(p, "a", "10.0.0.1"), address(p, "b", "10.0.0.2")},
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1", "IPAddressClaim ns/b 10.0.0.2-10.0.0.2"},
		},
		"OncePrefix": {
			reason: "so is that of a prefix",
			pool:   granting(pool("p", prefixes), grant("a", "fd00:0:0:1::", "fd00::1:ffff:ffff:ffff:ffff")),
			stored: []client.Object{address(p, "a", "fd00:0:0:1::")},
			want:   []string{"IPAddressClaim ns/a fd00:0:0:1::-fd00::1:ffff:ffff:ffff:ffff"},
		},
		"Both": {
			reason: "a grant of another address is another holding",
			pool:   granting(global("p", v4), grant("a", "10.0.0.1", "10.0.0.1")),
			stored: []client.Object{address(g, "a", "10.0.0.2")},
			want:   []string{"IPAddressClaim ns/a 10.0.0.1-10.0.0.1", "IPAddressClaim ns/a 10.0.0.2-10.0.0.2"},
		},
		"Blocks": {
			reason: "those that remember one, and those that Butler left; not of another pool, nor what has none",
			pool:   p,
			stored: []client.Object{
				block(p, "a", "10.0.0.8/29"), block(p, "b", ""), block(q, "c", "10.0.0.16/29"), block(g, "d", "10.0.0.24/29"), withAllocatedRange(block(p, "e", ""), "10.0.0.32", "10.0.0.34"),
			},
			want: []string{"IPAllocation ns/a 10.0.0.8-10.0.0.15", "IPAllocation ns/e 10.0.0.32-10.0.0.34"},
		},
		"BlocksOfAGlobalPool": {
			reason: "a kind and a name make a pool",
			pool:   g,
			stored: []client.Object{block(p, "a", "10.0.0.8/29"), block(g, "d", "10.0.0.24/29")},
			want:   []string{"IPAllocation ns/d 10.0.0.24-10.0.0.31"},
		},
		"UnreadableGrant": {
			reason: "a status edited by hand takes nothing",
			pool:   granting(pool("p", v4), grant("a", "", "10.0.0.1"), grant("b", "10.0.0.1", "x"), grant("c", "10.0.0.3", "10.0.0.3")),
			want:   []string{"IPAddressClaim ns/c 10.0.0.3-10.0.0.3"},
		},
		"Backwards": {
			reason: "nor does a grant whose ends are swapped, or of two families",
			pool:   granting(pool("p", v4), grant("a", "10.0.0.9", "10.0.0.1"), grant("b", "10.0.0.1", "fd00::1")),
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := (&LiveHolderLister{Reader: stored(t, tc.stored...)}).ListHolders(t.Context(), tc.pool)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, texts(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// newPagedReader has a fake client return lists in pages, as an API server does and a fake client does not. It records
// how each page was requested, and returns an error for the page failAt.
func newPagedReader(c client.WithWatch, asked *[]string, failAt int) client.Reader {
	return interceptor.NewClient(c, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			var o client.ListOptions
			o.ApplyOptions(opts)
			switch list.(type) {
			case *v1alpha1.IPAllocationList, *v1alpha1.IPLeaseList:
				return c.List(ctx, list, client.InNamespace(o.Namespace))
			}
			if *asked = append(*asked, fmt.Sprintf("%d from %q in %q", o.Limit, o.Continue, o.Namespace)); len(*asked) == failAt {
				return errNoAnswer
			}
			if len(*asked) > 9 {
				return errors.New("the list has no end")
			}
			all, ok := list.(*ipamv1.IPAddressList)
			if !ok {
				return fmt.Errorf("%T is listed", list)
			}
			if err := c.List(ctx, all, client.InNamespace(o.Namespace)); err != nil {
				return err
			}
			first := 0
			if o.Continue != "" {
				var err error
				if first, err = strconv.Atoi(o.Continue); err != nil {
					return err
				}
			}
			if next := first + int(o.Limit); next < len(all.Items) {
				all.Items, all.Continue = all.Items[:next], strconv.Itoa(next)
			}
			all.Items = all.Items[first:]
			return nil
		},
	})
}

var errNoAnswer = errors.New("no answer")

// TestHoldersByPage checks that all holders of a pool are found, in pages: a pool may have thousands (W14).
func TestHoldersByPage(t *testing.T) {
	p := pool("p", spec{CIDR: "10.0.0.0/16"})
	var objects []client.Object
	for i := range 2*pageSize + 1 {
		objects = append(objects, address(p, fmt.Sprintf("c%04d", i), fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
	}
	all := stored(t, objects...)

	var asked []string
	got, err := (&LiveHolderLister{Reader: newPagedReader(all, &asked, 0)}).ListHolders(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`500 from "" in "ns"`, `500 from "500" in "ns"`, `500 from "1000" in "ns"`}, asked); diff != "" {
		t.Errorf("each part is asked for once (-want +got):\n%s", diff)
	}
	var names, want []string
	for _, h := range got {
		names = append(names, h.Name)
	}
	for _, o := range objects {
		want = append(want, strings.TrimPrefix(o.GetName(), "of-"))
	}
	if !slices.Equal(want, names) {
		t.Errorf("%d holders are found of %d", len(names), len(want))
	}

	// A part of a list is no list: the addresses that are not in it would be cut off.
	asked = nil
	got, err = (&LiveHolderLister{Reader: newPagedReader(all, &asked, 2)}).ListHolders(t.Context(), p)
	if !errors.Is(err, errNoAnswer) || got != nil {
		t.Errorf("want the error of the second part alone, got %d holders, %v", len(got), err)
	}
	if err != nil && !strings.Contains(err.Error(), "NetworkPool ns/p") {
		t.Errorf("the error does not say what was being done: %v", err)
	}
}
