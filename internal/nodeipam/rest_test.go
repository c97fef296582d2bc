package nodeipam_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// A refusal that lasts costs next to nothing while it does: rights that are missing, a policy, a quota.

const (
	// refusalLasts is how long a refusal lasts, mostEach how often one object is written meanwhile, and mostLines how many
	// lines the log has of one cause: what fails is tried again after 50 ms, after twice as long each time, and at last twice
	// a minute.
	refusalLasts = 20 * time.Minute
	mostEach     = 60
	mostLines    = 80
	// revertedAfter is how long after a write another writer reverts it.
	revertedAfter = 20 * time.Millisecond
)

// toll is what a refusal costs.
type toll struct {
	// most is how often one object may be written, mostKicks how often the site may be reconciled.
	most, mostKicks int

	kicks  int
	writes map[string]int
	lines  map[string]int
}

// failing is the answer of an API server whose webhook fails.
func failing(*faults.Request) error {
	return apierrors.NewInternalError(errors.New("failed calling webhook"))
}

// refusals are what the API server refuses for a while, or another writer reverts.
var refusals = map[string]struct {
	is func(*faults.Request) bool
	by func(*faults.Request) error
	// revert is what another writer does after each such write, which succeeds; nil: it is refused.
	revert func(client.Object)
	// nodes is how many Nodes come, where all are served by one site; 0: a few.
	nodes int
}{
	"the ConfigMap, missing rights": {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.ConfigMaps && r.Write() }, by: forbidden},
	"reads of the ConfigMap":        {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.ConfigMaps }, by: forbidden},
	"the ConfigMap, a quota": {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.ConfigMaps && r.Write() }, by: func(r *faults.Request) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, r.Ref.Name, errors.New("exceeded quota"))
	}},
	"Nodes, missing rights":      {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Write() }, by: forbidden},
	"lists of Nodes":             {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Verb == "list" }, by: forbidden},
	"one Node":                   {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Write() && r.Ref.Name == "n00" }, by: forbidden},
	"ClusterCIDRs":               {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.ClusterCIDRs && r.Write() }, by: forbidden},
	"reads of ClusterCIDRs":      {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.ClusterCIDRs }, by: forbidden},
	"IPAllocations":              {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Allocations && r.Write() }, by: forbidden},
	"a webhook that answers 500": {is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Write() }, by: failing},
	"a webhook that answers 500, for many Nodes": {nodes: 20, is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Write() }, by: failing},
	"a webhook that answers 500, for many Nodes and ClusterCIDRs": {
		nodes: 20, is: func(r *faults.Request) bool {
			return (r.Ref.Kind == faults.Nodes || r.Ref.Kind == faults.ClusterCIDRs) && r.Write()
		}, by: failing,
	},
	"many Nodes, missing rights": {nodes: 60, is: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Write() }, by: forbidden},
	"all writes":                 {is: func(r *faults.Request) bool { return r.Write() }, by: forbidden},
	"a tool that resets the finalizers of ClusterCIDRs": {
		is:     func(r *faults.Request) bool { return r.Ref.Kind == faults.ClusterCIDRs && r.Write() },
		revert: func(o client.Object) { o.SetFinalizers(nil) },
	},
}

// TestRestWhileARefusalLasts has Nodes come while something is refused for good. There is at most one reconcile a second, the
// writes of each object are bounded, and so is the log; when the refusal ends, all are served.
func TestRestWhileARefusalLasts(t *testing.T) {
	t.Parallel()
	for _, name := range names(refusals) {
		for _, fleet := range []bool{false, true} {
			for _, start := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/fleet %v/from the start %v", name, fleet, start), func(t *testing.T) {
					t.Parallel()
					runRefusal(t, name, fleet, start)
				})
			}
		}
	}
}

func runRefusal(t *testing.T, name string, fleet, fromTheStart bool) {
	t.Helper()
	s := scenario{name: name, fleet: fleet, before: []client.Object{clusterCIDR("c", "10.0.0.0/16", 8)}, served: 12}
	s.served = max(s.served, refusals[name].nodes)
	if fleet {
		s.pool, s.served = threeBlocks, 6
		s.before = []client.Object{clusterProd(), fromPool("c")}
	}
	most, mostKicks := mostEach, int(refusalLasts/(2*time.Second))
	switch {
	case refusals[name].revert != nil:
		most = int(refusalLasts / time.Second) // what keeps an object is written again once a second
		mostKicks = most + 60
	case s.served > 12:
		most = int(refusalLasts / (3 * time.Second)) // the ConfigMap, twice for each moment at which Nodes are tried together
	}
	paid := toll{most: most, mostKicks: mostKicks, writes: map[string]int{}, lines: map[string]int{}}
	refuse := func(w *world) {
		kicks := w.kicks
		w.refuse = func(r *faults.Request) error {
			paid.kicks = w.kicks - kicks
			if r.Write() {
				paid.writes[r.Verb+" "+string(r.Ref.Kind)+" "+r.Ref.Name]++
			}
			of := refusals[name]
			switch {
			case !of.is(r):
				return nil
			case of.revert == nil:
				return of.by(r)
			}
			w.After(0, revertedAfter, func() {
				if w.refuse != nil && w.api.Edit(r.Ref, of.revert) == nil {
					w.Notef("another writer reverts %s", r.Ref.Name)
				}
			})
			return nil
		}
	}
	begin := action{"refuse", func(w *world) bool { refuse(w); clear(paid.lines); return true }}
	for i := range s.served {
		n := node(fmt.Sprintf("n%02d", i))
		if !fromTheStart && i%5 == 0 {
			s.script = append(s.script, add(n))
		} else {
			s.before = append(s.before, n)
		}
	}
	if !fromTheStart {
		s.script = append([]action{begin}, s.script...)
	}
	s.script = append(s.script, lasting(refusalLasts), action{"it ends", func(w *world) bool {
		paid.judge(w)
		w.refuse = nil
		return true
	}}, lasting(5*time.Minute))
	s.run(t, func(w *world) {
		w.logs = func(text string) { paid.lines[text]++ }
		if fromTheStart {
			refuse(w)
		}
	})
}

// judge says what costs too much.
func (p *toll) judge(w *world) {
	if p.kicks > p.mostKicks {
		w.Wrongf("rest: %d reconciles while a refusal lasts %v", p.kicks, refusalLasts)
	}
	for what, n := range p.writes {
		if n > p.most {
			w.Wrongf("rest: %s: %d writes while a refusal lasts %v", what, n, refusalLasts)
		}
	}
	for text, n := range p.lines {
		if n > mostLines {
			w.Wrongf("rest: %d lines in the log while a refusal lasts: %s", n, text)
		}
	}
}

// sink gives what a log says to a function, without what differs.
type sink struct{ to func(string) }

func (sink) Init(logr.RuntimeInfo)                 {}
func (sink) Enabled(int) bool                      { return true }
func (s sink) Info(_ int, msg string, _ ...any)    { s.to(msg) }
func (s sink) Error(_ error, msg string, _ ...any) { s.to(msg) }
func (s sink) WithValues(...any) logr.LogSink      { return s }
func (s sink) WithName(string) logr.LogSink        { return s }
