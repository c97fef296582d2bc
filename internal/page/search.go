package page

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// handleSearch returns the owners of an address, or, where the query is no address, those whose name or Cluster
// contains it.
func (p *Page) handleSearch(r *http.Request) (any, error) {
	q := strings.ToLower(strings.TrimSpace(r.URL.Query().Get("q")))
	const shortest = 2
	if len(q) < shortest {
		return nil, badRequestf("enter an address, or at least %d letters of the name of a claim, a lease or a Cluster", shortest)
	}
	out := &ownerList{Owners: []ownerRow{}}
	ip, err := netip.ParseAddr(q)
	for _, v := range p.Pools.PoolViews() {
		if r.Context().Err() != nil {
			return nil, badRequestf("none waits for the answer")
		}
		if err == nil {
			p.findAddress(v, ip.Unmap(), out)
		} else {
			p.findName(v, q, out)
		}
	}
	return out, nil
}

// findAddress adds the owner or the use of an address in a pool.
func (p *Page) findAddress(v grants.PoolView, ip netip.Addr, out *ownerList) {
	found := false
	p.Pools.WalkEntries(v.Key, ip, func(h grants.TakenRange) bool {
		if h.Range.Contains(ip) {
			found = true
			o := newOwnerRow(h)
			o.Pool = poolID(v.Key)
			out.add(o)
		}
		return false
	})
	if found || v.Declared == nil || !v.Declared.Contains(ip) {
		return
	}
	use := "free"
	if !v.Allocatable.Contains(ip) {
		use = useNames[useReserved]
	}
	for _, gateway := range v.Gateways {
		if gateway == ip {
			use = useNames[useGateway]
		}
	}
	out.add(ownerRow{Pool: poolID(v.Key), Range: ip.String(), FirstAddress: ip.String(), Use: use})
}

// findName adds the owners, and the waiting claimants, whose namespace/name or Cluster contains a text.
func (p *Page) findName(v grants.PoolView, q string, out *ownerList) {
	matches := func(namespace, name, cluster string) bool {
		return strings.Contains(strings.ToLower(namespace+"/"+name), q) || strings.Contains(strings.ToLower(cluster), q)
	}
	p.Pools.WalkEntries(v.Key, lowestAddress, func(h grants.TakenRange) bool {
		if !matches(h.Namespace, h.Name, h.Cluster) {
			return true
		}
		o := newOwnerRow(h)
		o.Pool = poolID(v.Key)
		return out.add(o)
	})
	p.Pools.WalkWaiters(v.Key, func(w grants.WaitingClaimant) bool {
		if !matches(w.Namespace, w.Name, w.Cluster) {
			return true
		}
		o := newWaiterRow(w)
		o.Pool = poolID(v.Key)
		return out.add(o)
	})
}
