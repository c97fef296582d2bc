package allocator

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// findMachines looks for the Machines of claims that wait, where subnets of the pool serve failure domains, so that the plan
// knows of them. Whoever holds the pool: without it nobody could tell whether there is work.
func (a *Allocator) findMachines(ctx context.Context, p *grants.Pool, now time.Time) {
	if a.MachineOf == nil {
		return
	}
	m := p.Lock()
	lookups := m.Lookups(now, maxBatch)
	m.Unlock()
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
		m.NoteMachine(of, found, problem, now)
		m.Unlock()
	})
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
