package page

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// search answers with who has an address or, where the question is none, with whose name or Cluster contains it.
func (p *Page) search(r *http.Request) (any, error) {
	q := strings.ToLower(strings.TrimSpace(r.URL.Query().Get("q")))
	const shortest = 2
	if len(q) < shortest {
		return nil, badf("enter an address, or at least %d letters of the name of a claim, a lease or a Cluster", shortest)
	}
	out := &list{Owners: []owner{}}
	ip, err := netip.ParseAddr(q)
	for _, v := range p.Pools.Views() {
		if r.Context().Err() != nil {
			return nil, badf("nobody waits for the answer")
		}
		if err == nil {
			p.findAddress(v, ip.Unmap(), out)
		} else {
			p.findName(v, q, out)
		}
	}
	return out, nil
}

// findAddress adds what a pool knows of an address.
func (p *Page) findAddress(v grants.View, ip netip.Addr, out *list) {
	found := false
	p.Pools.Walk(v.Key, ip, func(h grants.Entry) bool {
		if h.Range.Contains(ip) {
			found = true
			o := ownerOf(h)
			o.Pool = idOf(v.Key)
			out.add(o)
		}
		return false
	})
	if found || v.Declared == nil || !v.Declared.Contains(ip) {
		return
	}
	use := "free"
	if !v.Allocatable.Contains(ip) {
		use = uses[useReserved]
	}
	for _, gateway := range v.Gateways {
		if gateway == ip {
			use = uses[useGateway]
		}
	}
	out.add(owner{Pool: idOf(v.Key), Range: ip.String(), First: ip.String(), Use: use})
}

// findName adds the owners, and those who wait, whose namespace/name or Cluster contains a text.
func (p *Page) findName(v grants.View, q string, out *list) {
	matches := func(namespace, name, cluster string) bool {
		return strings.Contains(strings.ToLower(namespace+"/"+name), q) || strings.Contains(strings.ToLower(cluster), q)
	}
	p.Pools.Walk(v.Key, lowest, func(h grants.Entry) bool {
		if !matches(h.Namespace, h.Name, h.Cluster) {
			return true
		}
		o := ownerOf(h)
		o.Pool = idOf(v.Key)
		return out.add(o)
	})
	p.Pools.Waiting(v.Key, func(w grants.Waiter) bool {
		if !matches(w.Namespace, w.Name, w.Cluster) {
			return true
		}
		o := waiterOf(w)
		o.Pool = idOf(v.Key)
		return out.add(o)
	})
}
