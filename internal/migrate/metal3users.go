package migrate

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	m3ipamv1 "github.com/metal3-io/ip-address-manager/api/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// readUsers reads the IPClaims and IPAddresses of Metal3 that name the pool, and converts them to those of Cluster API.
func (mp metal3Pool) readUsers(ctx context.Context, from client.Reader) (poolUsers, error) {
	// Addresses are read before claims: a claim is gone later than its address.
	addresses, claims := &m3ipamv1.IPAddressList{}, &m3ipamv1.IPClaimList{}
	for _, list := range []client.ObjectList{addresses, claims} {
		if err := from.List(ctx, list, client.InNamespace(mp.Namespace)); err != nil {
			return poolUsers{}, fmt.Errorf("listing the IPClaims and IPAddresses of Metal3: %w", err)
		}
	}
	apiClaims, apiAddresses, err := listClaimsAndAddresses(ctx, from, mp.Namespace)
	if err != nil {
		return poolUsers{}, err
	}
	return mp.pairClaims(claims.Items, addresses.Items, apiClaims, apiAddresses), nil
}

// pairClaims returns the users of the pool among these objects. apiClaims and apiAddresses are those of Cluster API in
// the namespace. It is pure.
func (mp metal3Pool) pairClaims(claims []m3ipamv1.IPClaim, addresses []m3ipamv1.IPAddress, apiClaims []ipamv1.IPAddressClaim, apiAddresses []ipamv1.IPAddress) poolUsers {
	direct := filterByPool(mp.poolRef(), apiClaims, apiAddresses)
	taken := func(key client.ObjectKey) bool {
		return direct.addressByClaim[key] != nil || slices.ContainsFunc(apiClaims, func(c ipamv1.IPAddressClaim) bool { return client.ObjectKeyFromObject(&c) == key })
	}
	out := poolUsers{addressByClaim: map[client.ObjectKey]*ipamv1.IPAddress{}, metal3Entries: map[client.ObjectKey]*Metal3Entry{}}
	problemf := func(do, format string, args ...any) {
		out.problems = append(out.problems, Problem{fmt.Sprintf(format, args...), do})
	}
	byClaim := map[string][]*m3ipamv1.IPAddress{}
	for i := range addresses {
		if a := &addresses[i]; a.Spec.Pool.Name == mp.Name {
			byClaim[a.Spec.Claim.Name] = append(byClaim[a.Spec.Claim.Name], a)
		}
	}
	const finish = "let Metal3's IPAM finish: start it, and unpause the Cluster, until they agree"
	for i := range claims {
		c := &claims[i]
		if c.Spec.Pool.Name != mp.Name {
			continue
		}
		key, claimAddresses := client.ObjectKeyFromObject(c), byClaim[c.Name]
		delete(byClaim, c.Name)
		statusAddress := ptr.Deref(c.Status.Address, corev1.ObjectReference{}).Name
		switch {
		case len(claimAddresses) > 1:
			problemf("delete the one that the machine does not use", "IPClaim %s has two IPAddresses, %s and %s", key, claimAddresses[0].Name, claimAddresses[1].Name)
		case len(claimAddresses) == 0 && statusAddress == "":
			out.notImported = append(out.notImported, *mp.toClaim(c))
		case len(claimAddresses) == 0 || claimAddresses[0].Name != statusAddress:
			problemf(finish, "the status of IPClaim %s names IPAddress %q, but it has %q", key, statusAddress, firstAddressName(claimAddresses))
		case claimAddresses[0].DeletionTimestamp != nil:
			problemf("find out who deleted it: its machine uses it, and Metal3's IPAM would release it", "IPAddress %s of IPClaim %s is being deleted", claimAddresses[0].Name, key)
		case taken(key):
			problemf("delete that, or replace the machine of the IPClaim first", "an IPAddressClaim or IPAddress of Cluster API has the name of IPClaim %s", key)
		case !slices.ContainsFunc(claimAddresses[0].OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == c.UID }):
			problemf("add the IPClaim to its owners", "IPAddress %s is not owned by IPClaim %s, and would go with the pool", claimAddresses[0].Name, key)
		default:
			a := mp.toAddress(c.Name, claimAddresses[0])
			out.claims, out.addresses, out.addressByClaim[key] = append(out.claims, *mp.toClaim(c)), append(out.addresses, *a), a
			out.metal3Entries[key] = &Metal3Entry{Claim: c, Address: claimAddresses[0]}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byClaim)) {
		for _, a := range byClaim[name] {
			out.addresses = append(out.addresses, *mp.toAddress(a.Name, a))
		}
	}
	for i := range direct.claims {
		problemf("replace its machine first, by one that names another pool", "IPAddressClaim %s names the pool: only IPClaims of Metal3 are imported",
			client.ObjectKeyFromObject(&direct.claims[i]))
	}
	for i := range direct.addresses {
		problemf("delete its claim, when its machine is replaced", "IPAddress %s of Cluster API is of the pool: only those of Metal3 are imported",
			client.ObjectKeyFromObject(&direct.addresses[i]))
	}
	return out
}

// toClaim converts an IPClaim to a claim of Cluster API. That has no finalizers, as CAPM3 removes its own from the
// IPClaim alone. The IPClaim is an additional owner: the claim is deleted together with it.
func (mp metal3Pool) toClaim(c *m3ipamv1.IPClaim) *ipamv1.IPAddressClaim {
	out := &ipamv1.IPAddressClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, Labels: maps.Clone(c.Labels), DeletionTimestamp: c.DeletionTimestamp},
		Spec:       ipamv1.IPAddressClaimSpec{PoolRef: mp.poolRef()},
	}
	out.OwnerReferences = append(slices.Clone(c.OwnerReferences), metav1.OwnerReference{
		APIVersion: m3ipamv1.GroupVersion.String(), Kind: "IPClaim", Name: c.Name, UID: c.UID,
	})
	if c.Status.Address != nil {
		out.Status.AddressRef.Name = c.Name
	}
	return out
}

// toAddress converts an IPAddress of Metal3 to one of Cluster API, with the name of its claim.
func (mp metal3Pool) toAddress(name string, a *m3ipamv1.IPAddress) *ipamv1.IPAddress {
	text := string(a.Spec.Address)
	if ip, err := netip.ParseAddr(text); err == nil {
		text = ip.Unmap().String()
	}
	return &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: a.Namespace, Name: name, Labels: maps.Clone(a.Labels), OwnerReferences: []metav1.OwnerReference{
				{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)},
				{APIVersion: m3ipamv1.GroupVersion.String(), Kind: mp.Kind, Name: mp.Name, Controller: ptr.To(false), BlockOwnerDeletion: ptr.To(true)},
			},
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: mp.poolRef(),
			Address: text, Prefix: ptr.To(int32(min(a.Spec.Prefix, 128))), Gateway: string(ptr.Deref(a.Spec.Gateway, "")),
		},
	}
}

// describeWaitingClaim describes the outcome for an IPClaim that has no address.
func describeWaitingClaim(key client.ObjectKey) string {
	return fmt.Sprintf("IPClaim %s waits, and is left as it is: CAPM3 looks for its address there, so replace its machine", key)
}

func firstAddressName(addresses []*m3ipamv1.IPAddress) string {
	if len(addresses) == 0 {
		return ""
	}
	return addresses[0].Name
}
