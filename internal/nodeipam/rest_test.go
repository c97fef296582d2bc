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

// A refusal that lasts costs next to nothing meanwhile: missing rights, a policy, a quota.

const (
	// refusalLasts is how long a refusal lasts. maxWritesPerObject is how often one object may be written meanwhile,
	// and maxLogLines is how many log lines one cause may have: a failure is retried after 50 ms, after twice as long
	// each time, and at last twice a minute.
	refusalLasts       = 20 * time.Minute
	maxWritesPerObject = 60
	maxLogLines        = 80
	// revertedAfter is how long after a write another writer reverts it.
	revertedAfter = 20 * time.Millisecond
)

// writeCosts are the costs of a refusal.
type writeCosts struct {
	// maxWrites is how often one object may be written, maxReconciles is how often the cluster may be reconciled.
	maxWrites, maxReconciles int

	reconciles int
	writes     map[string]int
	lines      map[string]int
}

// failing returns the answer of an API server whose webhook fails.
func failing(*faults.Request) error {
	return apierrors.NewInternalError(errors.New("failed calling webhook"))
}

// refusals are the requests that the API server refuses for a while, or that another writer reverts.
var refusals = map[string]struct {
	matches func(*faults.Request) bool
	by      func(*faults.Request) error
	// revert is what another writer does after each of these writes, which succeeds; nil means that it is refused.
	revert func(client.Object)
	// nodes is how many Nodes come, where one allocator serves them all; 0 means a few.
	nodes int
}{
	"the ConfigMap, missing rights": {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.ConfigMaps && r.IsWrite() }, by: forbidden},
	"reads of the ConfigMap":        {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.ConfigMaps }, by: forbidden},
	"the ConfigMap, a quota": {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.ConfigMaps && r.IsWrite() }, by: func(r *faults.Request) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, r.Ref.Name, errors.New("exceeded quota"))
	}},
	"Nodes, missing rights":      {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.IsWrite() }, by: forbidden},
	"lists of Nodes":             {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.Verb == "list" }, by: forbidden},
	"one Node":                   {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.IsWrite() && r.Ref.Name == "n00" }, by: forbidden},
	"ClusterCIDRs":               {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.ClusterCIDRs && r.IsWrite() }, by: forbidden},
	"reads of ClusterCIDRs":      {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.ClusterCIDRs }, by: forbidden},
	"IPAllocations":              {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Allocations && r.IsWrite() }, by: forbidden},
	"a webhook that answers 500": {matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.IsWrite() }, by: failing},
	"a webhook that answers 500, for many Nodes": {nodes: 20, matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.IsWrite() }, by: failing},
	"a webhook that answers 500, for many Nodes and ClusterCIDRs": {
		nodes: 20, matches: func(r *faults.Request) bool {
			return (r.Ref.Kind == faults.Nodes || r.Ref.Kind == faults.ClusterCIDRs) && r.IsWrite()
		}, by: failing,
	},
	"many Nodes, missing rights": {nodes: 60, matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.Nodes && r.IsWrite() }, by: forbidden},
	"all writes":                 {matches: func(r *faults.Request) bool { return r.IsWrite() }, by: forbidden},
	"a tool that resets the finalizers of ClusterCIDRs": {
		matches: func(r *faults.Request) bool { return r.Ref.Kind == faults.ClusterCIDRs && r.IsWrite() },
		revert:  func(o client.Object) { o.SetFinalizers(nil) },
	},
}

// TestRestWhileARefusalLasts adds Nodes while something is refused permanently. There is at most one reconcile a
// second, the writes of each object are bounded, and so is the log; when the refusal ends, all Nodes are served.
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
	most, mostKicks := maxWritesPerObject, int(refusalLasts/(2*time.Second))
	switch {
	case refusals[name].revert != nil:
		most = int(refusalLasts / time.Second) // what keeps an object is written again once a second
		mostKicks = most + 60
	case s.served > 12:
		most = int(refusalLasts / (3 * time.Second)) // the ConfigMap, twice for each time at which Nodes are retried together
	}
	paid := writeCosts{maxWrites: most, maxReconciles: mostKicks, writes: map[string]int{}, lines: map[string]int{}}
	refuse := func(w *world) {
		kicks := w.reconciles
		w.refuse = func(r *faults.Request) error {
			paid.reconciles = w.reconciles - kicks
			if r.IsWrite() {
				paid.writes[r.Verb+" "+string(r.Ref.Kind)+" "+r.Ref.Name]++
			}
			of := refusals[name]
			switch {
			case !of.matches(r):
				return nil
			case of.revert == nil:
				return of.by(r)
			}
			w.DelayStep(0, revertedAfter, func() {
				if w.refuse != nil && w.api.EditObject(r.Ref, of.revert) == nil {
					w.Tracef("another writer reverts %s", r.Ref.Name)
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
	s.script = append(s.script, waitFor(refusalLasts), action{"it ends", func(w *world) bool {
		paid.checkCosts(w)
		w.refuse = nil
		return true
	}}, waitFor(5*time.Minute))
	s.run(t, func(w *world) {
		w.logs = func(text string) { paid.lines[text]++ }
		if fromTheStart {
			refuse(w)
		}
	})
}

// checkCosts reports costs that are too high.
func (p *writeCosts) checkCosts(w *world) {
	if p.reconciles > p.maxReconciles {
		w.Failf("rest: %d reconciles while a refusal lasts %v", p.reconciles, refusalLasts)
	}
	for write, n := range p.writes {
		if n > p.maxWrites {
			w.Failf("rest: %s: %d writes while a refusal lasts %v", write, n, refusalLasts)
		}
	}
	for text, n := range p.lines {
		if n > maxLogLines {
			w.Failf("rest: %d lines in the log while a refusal lasts: %s", n, text)
		}
	}
}

// logSink passes the message of each log line to a function, without its values.
type logSink struct{ emit func(string) }

func (logSink) Init(logr.RuntimeInfo)                 {}
func (logSink) Enabled(int) bool                      { return true }
func (s logSink) Info(_ int, msg string, _ ...any)    { s.emit(msg) }
func (s logSink) Error(_ error, msg string, _ ...any) { s.emit(msg) }
func (s logSink) WithValues(...any) logr.LogSink      { return s }
func (s logSink) WithName(string) logr.LogSink        { return s }
