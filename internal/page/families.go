package page

import (
	"net/http"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// maxSampledEntries limits how many entries of a pool are read to find the Clusters that it serves.
const maxSampledEntries = 1000

// handleFamilies returns the pools of the other IP family that serve a Cluster which the requested pool serves, too:
// its machines have addresses of both. Only the first addresses of each pool are read, so the cost does not grow with
// the pool.
func (p *Page) handleFamilies(r *http.Request) (any, error) {
	v, err := p.viewFromRequest(r)
	if err != nil {
		return nil, err
	}
	out := struct {
		Pools []string `json:"pools"`
	}{Pools: []string{}}
	family, known := poolFamily(v)
	if !known {
		return out, nil
	}
	clusters := map[string]bool{}
	p.visitClusters(v, func(name string) bool { clusters[name] = true; return true })
	for _, other := range p.Pools.PoolViews() {
		if f, known := poolFamily(other); !known || f == family || len(clusters) == 0 {
			continue
		}
		shared := false
		p.visitClusters(other, func(name string) bool { shared = clusters[name]; return !shared })
		if shared {
			out.Pools = append(out.Pools, poolID(other.Key))
		}
	}
	return out, nil
}

// poolFamily returns the number of bits of a pool's addresses; false where it has none, or hands out prefixes, which
// machines do not use.
func poolFamily(v grants.PoolView) (bits int, known bool) {
	if v.Declared == nil || len(v.Declared.Ranges()) == 0 {
		return 0, false
	}
	bits = v.Declared.Ranges()[0].From().BitLen()
	return bits, v.UnitBits == bits
}

// visitClusters visits the Clusters whose machines have the first addresses of a pool.
func (p *Page) visitClusters(v grants.PoolView, visit func(name string) bool) {
	n := 0
	p.Pools.WalkEntries(v.Key, lowestAddress, func(e grants.TakenRange) bool {
		n++
		return (e.Use != grants.UseClaim || e.Cluster == "" || visit(e.Namespace+"/"+e.Cluster)) && n < maxSampledEntries
	})
}
