package page

import (
	"net/http"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// sampled bounds how many entries of a pool are looked at for the Clusters that it serves.
const sampled = 1000

// families answers with the pools of the other family that serve a Cluster which a pool serves as well: of both, its
// machines have addresses. The first addresses of each tell, so a look costs as much in a large pool as in a small one.
func (p *Page) families(r *http.Request) (any, error) {
	v, err := p.view(r)
	if err != nil {
		return nil, err
	}
	out := struct {
		Pools []string `json:"pools"`
	}{Pools: []string{}}
	family, known := familyOf(v)
	if !known {
		return out, nil
	}
	clusters := map[string]bool{}
	p.clusters(v, func(name string) bool { clusters[name] = true; return true })
	for _, other := range p.Pools.Views() {
		if f, known := familyOf(other); !known || f == family || len(clusters) == 0 {
			continue
		}
		shared := false
		p.clusters(other, func(name string) bool { shared = clusters[name]; return !shared })
		if shared {
			out.Pools = append(out.Pools, idOf(other.Key))
		}
	}
	return out, nil
}

// familyOf is how many bits the addresses of a pool have; false: it has none, or gives prefixes, which are none of a machine.
func familyOf(v grants.View) (bits int, known bool) {
	if v.Declared == nil || len(v.Declared.Ranges()) == 0 {
		return 0, false
	}
	bits = v.Declared.Ranges()[0].From().BitLen()
	return bits, v.UnitBits == bits
}

// clusters visits the Clusters whose machines have the first addresses of a pool.
func (p *Page) clusters(v grants.View, visit func(name string) bool) {
	n := 0
	p.Pools.Walk(v.Key, lowest, func(e grants.Entry) bool {
		n++
		return (e.Use != grants.UseClaim || e.Cluster == "" || visit(e.Namespace+"/"+e.Cluster)) && n < sampled
	})
}
