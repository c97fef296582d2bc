package allocator

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// findMachines looks for the Machines of claims that wait, where subnets of the pool serve failure domains, and waits for what
// it finds: for who has no turns, as a Snapshot.
func (a *Allocator) findMachines(ctx context.Context, p *grants.Pool, now time.Time) {
	a.lookForMachines(ctx, p, a.beginLookups(p, now), func() time.Time { return now })
}

// seekMachines begins to look for the Machines of claims that wait, where subnets of the pool serve failure domains, and
// returns when to look again, 0: never. The pool's turns do not wait for it: what a lookup hangs on is no concern of those
// who are released, or whose Machines are known. Also where another manager holds the pool: without it this one does not
// know whether there is work.
func (a *Allocator) seekMachines(p *grants.Pool, now time.Time) time.Duration {
	if lookups := a.beginLookups(p, now); len(lookups) > 0 {
		ctx := a.jobContext()
		go func() {
			a.lookForMachines(ctx, p, lookups, a.now)
			a.wake(p.Key)
		}()
	}
	return a.nextLookup(p, now)
}

func (a *Allocator) beginLookups(p *grants.Pool, now time.Time) []grants.Lookup {
	if a.MachineOf == nil {
		return nil
	}
	m := p.Lock()
	defer m.Unlock()
	return m.BeginLookups(now)
}

// lookForMachines looks for the Machines of claims. Each is known as soon as it is found.
func (a *Allocator) lookForMachines(ctx context.Context, p *grants.Pool, lookups []grants.Lookup, now func() time.Time) {
	ctx, cancel := timed(ctx)
	defer cancel()
	workqueue.ParallelizeUntil(ctx, a.Writers, len(lookups), func(i int) {
		of := lookups[i]
		found, err := a.MachineOf(ctx, of.Name.Namespace, of.Owners)
		var problem *grants.Refusal
		if err != nil {
			problem = grants.Failed("the Machine of this claim, whose failure domain decides on its subnet, is not known: %v", err)
		}
		m := p.Lock()
		m.NoteMachine(of, found, problem, now())
		m.Unlock()
	})
	m := p.Lock()
	m.EndLookups(lookups)
	m.Unlock()
}

// nextLookup is when a Machine is to be looked for again, or what was found meanwhile to be looked at; 0: never.
func (a *Allocator) nextLookup(p *grants.Pool, now time.Time) time.Duration {
	if a.MachineOf == nil {
		return 0
	}
	m := p.Lock()
	defer m.Unlock()
	return m.NextLookup(now)
}

// soonest is when a pool is reconciled again that has to come back after wait, and to look for Machines after look; 0: never.
func soonest(wait, look time.Duration) reconcile.Result {
	if look > 0 {
		wait = grants.Sooner(wait, look)
	}
	return reconcile.Result{RequeueAfter: wait}
}

// onMachine decides on a claim that nothing else keeps from being served by what is known of its Machine.
func (a *Allocator) onMachine(m *grants.Memory, c *grants.Claimant, so grants.Ruling) grants.Ruling {
	onIt := m.OnMachine(c)
	if onIt.Waits && a.MachineOf == nil {
		so.Refused = grants.NotReady("%s has subnets for failure domains, and this manager runs without --failure-domains; apply component-failure-domains.yaml of its release and restart it", m.Key)
		return so
	}
	so.Waits, so.Silent, so.Refused = onIt.Waits, onIt.Silent, onIt.Refused
	return so
}
