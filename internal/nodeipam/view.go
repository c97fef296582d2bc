package nodeipam

import (
	"math"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// Moment is a cluster as objects of one moment show it. What is in State is best read before the Nodes: a grant leaves it
// when its Node has the CIDRs.
type Moment struct {
	Nodes []corev1.Node
	// Objects are what CIDRs are given from, Services the CIDRs of Services.
	Objects  []Object
	Services []netip.Prefix
	// Blocks are those of pools that the cluster has.
	Blocks []Block
	// State is what the ConfigMap says; nil: there is none, or it cannot be read.
	State *fence.State
	// Damage is why the ConfigMap cannot be understood, nil where it can.
	Damage error
}

// View is what a manager would know and decide of a moment: a site's memory and its rules without its writes, for tools
// that say what is and what would be. It is not safe for concurrent use.
type View struct {
	Report Report
	memory *memory
	// planned is what Nodes that wait would be given now.
	planned map[types.UID]podcidr.Grant
}

// Note is what a manager says of a Node by an event.
type Note struct{ Reason, Message string }

// Choice is an object, as it is for one Node.
type Choice struct {
	Object
	Usage
	// Selects: it is for the Node.
	Selects bool
}

// NewView looks at a moment, and plans for all Nodes that wait.
func NewView(in Moment, now time.Time) *View {
	m := newMemory(Key{}, 0)
	m.setServices(in.Services)
	m.setObjects(in.Objects)
	listed := map[types.UID]*node{}
	for i := range in.Nodes {
		o := &in.Nodes[i]
		listed[o.UID] = seen(nodeOf(o), o.ResourceVersion, now)
	}
	var state fence.State
	if in.State != nil {
		state = *in.State
	}
	m.tookOver(state, listed, now)
	if state.Adopting != nil && state.Adopting.Before(now) {
		m.adoptUntil = state.Adopting.Add(adoption)
	}
	m.setBlocks(in.Blocks, now)
	m.commitErr = in.Damage
	if !now.Before(m.adoptUntil) {
		m.adopting = false // that it is still on record says only that nobody has gone on
	}
	v := &View{memory: m, planned: map[types.UID]podcidr.Grant{}}
	v.plan(now)
	v.Report = m.report()
	return v
}

func (v *View) plan(now time.Time) {
	m := v.memory
	m.setGrows(now)
	var waiting []*podcidr.Node
	for _, n := range m.todo {
		waiting = append(waiting, n.Node)
	}
	d := podcidr.Plan(m.books, m.ranges(), waiting, math.MaxInt, now)
	for _, g := range d.Grants {
		g.CIDRs = inOrder(g.CIDRs, m.first)
		v.planned[g.Node.UID] = g
	}
	m.refuse(d.Refused)
	for uid := range v.planned {
		m.books.Withdraw(uid) // nobody has it yet
	}
}

// Nodes are the Nodes, the oldest first.
func (v *View) Nodes() []*podcidr.Node {
	var out []*podcidr.Node
	for _, n := range v.memory.sorted() {
		out = append(out, n.Node)
	}
	return out
}

// RangeOf is the range that a Node counts for; nil: what it has is in none.
func (v *View) RangeOf(n *podcidr.Node) *podcidr.Range {
	if len(n.CIDRs) == 0 {
		return nil
	}
	return v.memory.rangeOf(n)
}

// Says is what a manager would say of a Node by events.
func (v *View) Says(uid types.UID) (out []Note) {
	for _, n := range v.memory.said[uid] {
		out = append(out, Note{n.reason, n.message})
	}
	return out
}

// Planned is what a Node that waits would be given now; false: nothing.
func (v *View) Planned(uid types.UID) (podcidr.Grant, bool) {
	g, is := v.planned[uid]
	return g, is
}

// Refused is why a Node that waits would be given nothing now; false: it does not wait, or it would be given something.
func (v *View) Refused(uid types.UID) (podcidr.Refusal, bool) {
	why, is := v.memory.refused[uid]
	return why, is
}

// Waiting is how many Nodes wait for a grant, with those that get none.
func (v *View) Waiting() int { return len(v.planned) + len(v.memory.refused) }

// ForServices reports whether some of a prefix is for Services, and what of it.
func (v *View) ForServices(p netip.Prefix) (netip.Prefix, bool) { return v.memory.books.Excluded(p) }

// Objects are what CIDRs are given from, in the order in which those come that match a Node equally well. What is not
// valid comes last.
func (v *View) Objects() (out []Object) {
	m := v.memory
	for _, r := range m.ranges() {
		out = append(out, m.objects[r.Ref])
	}
	for _, o := range m.objects {
		if o.Range == nil {
			out = append(out, o)
		}
	}
	return out
}

// Choices are the objects, those that are for a Node first, in the order in which they are tried.
func (v *View) Choices(n *podcidr.Node) (out []Choice) {
	m := v.memory
	order := podcidr.Order(m.ranges(), n)
	for _, r := range order {
		out = append(out, Choice{Object: m.objects[r.Ref], Usage: v.Report.Ranges[r.Ref], Selects: true})
	}
	for _, o := range v.Objects() {
		if o.Range == nil || !slices.Contains(order, o.Range) {
			out = append(out, Choice{Object: o, Usage: v.Report.Ranges[o.Ref]})
		}
	}
	return out
}

// Users are the names of the Nodes that have CIDRs of an object, or may yet get them.
func (v *View) Users(ref podcidr.Ref) []string { return v.memory.users(v.memory.objects[ref]) }

// Waiters are the names of the Nodes that wait for room in an object.
func (v *View) Waiters(ref podcidr.Ref) (out []string) {
	for uid, why := range v.memory.refused {
		if slices.Contains(why.Full, ref) {
			out = append(out, v.memory.nodes[uid].Name)
		}
	}
	slices.Sort(out)
	return out
}
