package migrate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolspec"
)

// ImportAnnotation is on a pool of ours that was made by an import: the pool it came from.
const ImportAnnotation = "butler.butlerlabs.dev/imported-from"

// Plan is what an import would do.
type Plan struct {
	Source string `json:"source"`
	Target string `json:"target"`
	// Spec is the one of the pool that is created.
	Spec *v1alpha1.NetworkPoolSpec `json:"spec,omitempty"`
	// Claims are created again, by namespace and name.
	Claims []PlannedClaim `json:"claims"`
	// Becomes is what is done to them.
	Becomes string `json:"-"`
	// Problems stand in the way of all of it, Notes do not.
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"`

	entries []Entry
	pool    v1alpha1.Pool
	metal3  *unstructured.Unstructured
}

// PlannedClaim is a claim that is created again.
type PlannedClaim struct {
	Claim string `json:"claim"`
	// Address is what it has and keeps; empty for one that waits.
	Address string `json:"address,omitempty"`
	Cluster string `json:"cluster,omitempty"`
}

// Problem stands in the way of an import.
type Problem struct {
	What string `json:"what"`
	Do   string `json:"do"`
}

// plan decides what is to be done with what was found. It is pure.
func plan(source Source, target pools.Key, in *found, withoutCluster bool) *Plan {
	p := &Plan{
		Source: source.String(), Target: target.String(), Claims: []PlannedClaim{}, Problems: []Problem{}, Notes: []string{},
		Becomes: source.origin().words().becomes,
	}
	p.metal3 = in.pool.metal3
	layout := p.translate(source, target, in)
	p.surroundings(source, target, in, layout)
	p.collect(source.origin().words(), in, layout)
	p.Problems = append(p.Problems, in.problems...)
	p.clusters(in, withoutCluster)
	if never := machines(in); len(never) > 0 {
		p.Problems = never // nobody is to solve the others in vain
	}
	return p
}

func (p *Plan) problemf(do, format string, args ...any) {
	p.Problems = append(p.Problems, Problem{fmt.Sprintf(format, args...), do})
}

// firstProblem is the first of what stands in the way, as an error.
func (p *Plan) firstProblem() error {
	if len(p.Problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", p.Problems[0].What, p.Problems[0].Do)
}

// translate makes the pool.
func (p *Plan) translate(source Source, target pools.Key, in *found) *poolspec.Layout {
	spec := in.pool.spec
	p.Notes = append(p.Notes, in.pool.notes...)
	for _, text := range in.pool.problems {
		p.problemf("correct the spec of "+source.String(), "%s", text)
	}
	if len(in.pool.problems) > 0 {
		return nil
	}
	layout, _ := poolspec.Compile(&spec) // has no problem, or the translation had it
	p.Spec = &spec
	about := metav1.ObjectMeta{
		Namespace: target.Namespace, Name: target.Name, Labels: in.pool.Labels,
		Annotations: map[string]string{ImportAnnotation: source.String(), clusterv1.PausedAnnotation: ""},
	}
	if target.Kind == v1alpha1.GlobalNetworkPoolKind {
		p.pool = &v1alpha1.GlobalNetworkPool{ObjectMeta: about, Spec: v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: spec}}
	} else {
		p.pool = &v1alpha1.NetworkPool{ObjectMeta: about, Spec: spec}
	}
	return layout
}

// surroundings looks at what could serve the pools meanwhile.
func (p *Plan) surroundings(source Source, target pools.Key, in *found, layout *poolspec.Layout) {
	p.Problems = append(p.Problems, source.origin().unserved(in)...)
	if in.pool.DeletionTimestamp != nil {
		p.problemf("create the pool anew", "%s is being deleted", source)
	}
	if in.target != nil {
		p.problemf("import under another name with --to", "%s exists", target)
	}
	if in.namesake {
		p.problemf("import under another name with --to", "Metal3 has an IPPool that is called %s, too, and its IPAM takes part in claims on any pool of that name", target.Name)
	}
	for _, other := range in.others {
		theirs, _ := poolspec.Compile(other.PoolSpec())
		if layout == nil || theirs == nil || other.PoolSpec().Network != "" {
			continue
		}
		if shared := poolspec.Overlap(layout, theirs); len(shared) > 0 {
			do := "take the addresses out of one of the two, or give the other pool a spec.network of its own"
			key := pools.KeyOf(other)
			if ref, mirror := incluster.MirroredBy(key.Kind, key.Name); mirror && key.Namespace == source.Namespace && ref == source.ref() {
				do = "run the manager without --serve-in-cluster-pools, and hand the pools back: kubectl butler-ipam hand-back"
			}
			p.problemf(do, "%s has %s too", key, shared[0])
		}
	}
}

// collect pairs claims with their IPAddresses, and finds those that cannot be taken along.
func (p *Plan) collect(say words, in *found, layout *poolspec.Layout) {
	claims := map[client.ObjectKey]*ipamv1.IPAddressClaim{}
	slices.SortFunc(in.claims, func(a, b ipamv1.IPAddressClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range in.claims {
		c := &in.claims[i]
		key := client.ObjectKeyFromObject(c)
		claims[key] = c
		e := Entry{Claim: c, Metal3: in.metal3[key]}
		if a := in.named[key]; a != nil && a.Spec.ClaimRef.Name == c.Name && a.Spec.PoolRef == c.Spec.PoolRef {
			e.Address = a
		} else if a != nil {
			p.problemf("delete the IPAddress if nobody uses it", "IPAddress %s has the name of a claim of the pool, and is of another pool or claim", key)
		}
		planned := PlannedClaim{Claim: key.String(), Cluster: clusterOf(c).Name}
		if e.Address != nil {
			planned.Address = e.Address.Spec.Address
		}
		if c.DeletionTimestamp != nil {
			p.problemf("let "+say.provider+" finish: start it, and unpause the pool and the Cluster, until the claim is gone", "claim %s is being deleted", key)
		}
		p.entries, p.Claims = append(p.entries, e), append(p.Claims, planned)
	}
	for i := range in.left {
		p.Notes = append(p.Notes, waitsOn(client.ObjectKeyFromObject(&in.left[i])))
	}
	holders := map[netip.Addr]client.ObjectKey{}
	for i := range in.addresses {
		a := &in.addresses[i]
		key := client.ObjectKeyFromObject(a)
		if claims[key] == nil {
			p.problemf("delete the IPAddress if nobody uses the address", "IPAddress %s (%s) has no claim", key, a.Spec.Address)
		}
		ip, err := netip.ParseAddr(a.Spec.Address)
		if err != nil {
			p.problemf("delete it and its claim", "IPAddress %s has spec.address %q, which is not an IP address", key, a.Spec.Address)
			continue
		}
		ip = ip.Unmap()
		if other, taken := holders[ip]; taken {
			p.problemf("find out which of the two machines answers for the address, and delete the claim of the other", "%s is given twice: to %s and to %s", ip, other, key)
		}
		holders[ip] = key
		if layout != nil && !layout.Allocatable().Contains(ip) {
			p.problemf(say.outside, "%s of IPAddress %s is not among what the pool hands out", ip, key)
		}
	}
}

// clusters wants all Clusters paused: their providers must not see that a claim is missing for a moment.
func (p *Plan) clusters(in *found, withoutCluster bool) {
	for _, key := range slices.SortedFunc(maps.Keys(in.clusters), func(a, b client.ObjectKey) int { return cmp.Compare(a.String(), b.String()) }) {
		if c := in.clusters[key]; c == nil {
			p.problemf("delete the claims that name it, or create it, paused", "Cluster %s does not exist", key)
		} else if !annotations.IsPaused(c, c) {
			p.problemf(fmt.Sprintf("kubectl patch cluster -n %s %s --type=merge -p '{\"spec\":{\"paused\":true}}'", key.Namespace, key.Name),
				"Cluster %s is not paused", key)
		}
	}
	for i := range in.claims {
		if c := &in.claims[i]; clusterOf(c).Name == "" && !withoutCluster {
			p.problemf("make sure that an import does not disturb what created the claim, and pass --without-cluster",
				"claim %s names no Cluster that could be paused", client.ObjectKeyFromObject(c))
		}
	}
}
