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

// ImportAnnotation on a pool of ours records the pool from which it was imported.
const ImportAnnotation = "butler.butlerlabs.dev/imported-from"

// Plan is the effect of an import.
type Plan struct {
	Source string `json:"source"`
	Target string `json:"target"`
	// Spec is the spec of the pool that is created.
	Spec *v1alpha1.NetworkPoolSpec `json:"spec,omitempty"`
	// Claims lists the claims that are created again, by namespace and name.
	Claims []PlannedClaim `json:"claims"`
	// ClaimsOutcome describes what happens to the claims.
	ClaimsOutcome string `json:"-"`
	// Problems lists the obstacles; with any of them nothing is imported. Notes lists findings that do not block the
	// import.
	Problems []Problem `json:"problems"`
	Notes    []string  `json:"notes"`

	entries      []Entry
	targetPool   v1alpha1.Pool
	metal3Object *unstructured.Unstructured
}

// PlannedClaim is a claim that is created again.
type PlannedClaim struct {
	Claim string `json:"claim"`
	// Address is the address that it has and keeps; empty for a claim that waits.
	Address string `json:"address,omitempty"`
	Cluster string `json:"cluster,omitempty"`
}

// Problem is an obstacle to an import, and the advice how to remove it.
type Problem struct {
	Message string `json:"what"`
	Advice  string `json:"do"`
}

// newPlan decides on the input. It is pure.
func newPlan(source Source, target pools.Key, in *planInput, withoutCluster bool) *Plan {
	p := &Plan{
		Source: source.String(), Target: target.String(), Claims: []PlannedClaim{}, Problems: []Problem{}, Notes: []string{},
		ClaimsOutcome: source.provider().texts().claimsOutcome,
	}
	p.metal3Object = in.pool.metal3Object
	layout := p.translatePool(source, target, in)
	p.checkEnvironment(source, target, in, layout)
	p.collectClaims(source.provider().texts(), in, layout)
	p.Problems = append(p.Problems, in.problems...)
	p.checkClustersPaused(in, withoutCluster)
	if never := findPoolBoundMachines(in); len(never) > 0 {
		p.Problems = never // users need not solve the others if these cannot be solved
	}
	return p
}

func (p *Plan) addProblemf(do, format string, args ...any) {
	p.Problems = append(p.Problems, Problem{fmt.Sprintf(format, args...), do})
}

// firstProblem returns the first problem as an error; nil if there is none.
func (p *Plan) firstProblem() error {
	if len(p.Problems) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", p.Problems[0].Message, p.Problems[0].Advice)
}

// translatePool builds the target pool. It returns the layout of that; nil where the source cannot be translated.
func (p *Plan) translatePool(source Source, target pools.Key, in *planInput) *poolspec.Layout {
	spec := in.pool.spec
	p.Notes = append(p.Notes, in.pool.notes...)
	for _, text := range in.pool.problems {
		p.addProblemf("correct the spec of "+source.String(), "%s", text)
	}
	if len(in.pool.problems) > 0 {
		return nil
	}
	layout, _ := poolspec.Compile(&spec) // the translation has reported its problems
	p.Spec = &spec
	about := metav1.ObjectMeta{
		Namespace: target.Namespace, Name: target.Name, Labels: in.pool.Labels,
		Annotations: map[string]string{ImportAnnotation: source.String(), clusterv1.PausedAnnotation: ""},
	}
	if target.Kind == v1alpha1.GlobalNetworkPoolKind {
		p.targetPool = &v1alpha1.GlobalNetworkPool{ObjectMeta: about, Spec: v1alpha1.GlobalNetworkPoolSpec{NetworkPoolSpec: spec}}
	} else {
		p.targetPool = &v1alpha1.NetworkPool{ObjectMeta: about, Spec: spec}
	}
	return layout
}

// checkEnvironment adds the problems of everything that could serve the addresses meanwhile.
func (p *Plan) checkEnvironment(source Source, target pools.Key, in *planInput, layout *poolspec.Layout) {
	p.Problems = append(p.Problems, source.provider().findServingProblems(in)...)
	if in.pool.DeletionTimestamp != nil {
		p.addProblemf("create the pool again", "%s is being deleted", source)
	}
	if in.targetPool != nil {
		p.addProblemf("import under another name with --to", "%s exists", target)
	}
	if in.metal3NameConflict {
		p.addProblemf("import under another name with --to", "Metal3 has an IPPool that is called %s, too, and its IPAM takes part in claims on any pool of that name", target.Name)
	}
	for _, other := range in.otherPools {
		otherLayout, _ := poolspec.Compile(other.PoolSpec())
		if layout == nil || otherLayout == nil || other.PoolSpec().Network != "" {
			continue
		}
		if shared := poolspec.OverlappingRanges(layout, otherLayout); len(shared) > 0 {
			do := "take the addresses out of one of the two, or give the other pool a spec.network of its own"
			key := pools.KeyForPool(other)
			if ref, mirror := incluster.RefForMirror(key.Kind, key.Name); mirror && key.Namespace == source.Namespace && ref == source.poolRef() {
				do = "run the manager without --serve-in-cluster-pools, and hand the pools back: kubectl butler-ipam hand-back"
			}
			p.addProblemf(do, "%s has %s too", key, shared[0])
		}
	}
}

// collectClaims pairs claims with their IPAddresses, and adds problems for those that cannot be moved.
func (p *Plan) collectClaims(texts providerTexts, in *planInput, layout *poolspec.Layout) {
	claims := map[client.ObjectKey]*ipamv1.IPAddressClaim{}
	slices.SortFunc(in.claims, func(a, b ipamv1.IPAddressClaim) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for i := range in.claims {
		c := &in.claims[i]
		key := client.ObjectKeyFromObject(c)
		claims[key] = c
		e := Entry{Claim: c, Metal3: in.metal3Entries[key]}
		if a := in.addressByClaim[key]; a != nil && a.Spec.ClaimRef.Name == c.Name && a.Spec.PoolRef == c.Spec.PoolRef {
			e.Address = a
		} else if a != nil {
			p.addProblemf("delete the IPAddress if it is not in use", "IPAddress %s has the name of a claim of the pool, and is of another pool or claim", key)
		}
		planned := PlannedClaim{Claim: key.String(), Cluster: clusterKeyForClaim(c).Name}
		if e.Address != nil {
			planned.Address = e.Address.Spec.Address
		}
		if c.DeletionTimestamp != nil {
			p.addProblemf("let "+texts.providerName+" finish: start it, and unpause the pool and the Cluster, until the claim is gone", "claim %s is being deleted", key)
		}
		p.entries, p.Claims = append(p.entries, e), append(p.Claims, planned)
	}
	for i := range in.notImported {
		p.Notes = append(p.Notes, describeWaitingClaim(client.ObjectKeyFromObject(&in.notImported[i])))
	}
	holders := map[netip.Addr]client.ObjectKey{}
	for i := range in.addresses {
		a := &in.addresses[i]
		key := client.ObjectKeyFromObject(a)
		if claims[key] == nil {
			p.addProblemf("delete the IPAddress if its address is not in use", "IPAddress %s (%s) has no claim", key, a.Spec.Address)
		}
		ip, err := netip.ParseAddr(a.Spec.Address)
		if err != nil {
			p.addProblemf("delete it and its claim", "IPAddress %s has spec.address %q, which is not an IP address", key, a.Spec.Address)
			continue
		}
		ip = ip.Unmap()
		if other, taken := holders[ip]; taken {
			p.addProblemf("find out which of the two machines answers for the address, and delete the claim of the other", "%s is given twice: to %s and to %s", ip, other, key)
		}
		holders[ip] = key
		if layout != nil && !layout.Allocatable().Contains(ip) {
			p.addProblemf(texts.outsideAdvice, "%s of IPAddress %s is not among what the pool hands out", ip, key)
		}
	}
}

// checkClustersPaused requires that all Clusters are paused: their providers must not notice that a claim is missing
// for a moment.
func (p *Plan) checkClustersPaused(in *planInput, withoutCluster bool) {
	for _, key := range slices.SortedFunc(maps.Keys(in.clusters), func(a, b client.ObjectKey) int { return cmp.Compare(a.String(), b.String()) }) {
		if c := in.clusters[key]; c == nil {
			p.addProblemf("delete the claims that name it, or create it, paused", "Cluster %s does not exist", key)
		} else if !annotations.IsPaused(c, c) {
			p.addProblemf(fmt.Sprintf("kubectl patch cluster -n %s %s --type=merge -p '{\"spec\":{\"paused\":true}}'", key.Namespace, key.Name),
				"Cluster %s is not paused", key)
		}
	}
	for i := range in.claims {
		if c := &in.claims[i]; clusterKeyForClaim(c).Name == "" && !withoutCluster {
			p.addProblemf("make sure that an import does not disturb what created the claim, and pass --without-cluster",
				"claim %s names no Cluster that could be paused", client.ObjectKeyFromObject(c))
		}
	}
}
