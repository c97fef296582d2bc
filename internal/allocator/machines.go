package allocator

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// machineLookups looks up the Machines of waiting claims, where subnets of a pool serve failure domains. What it finds
// is part of the state of the pool; no reconcile waits for it.
type machineLookups struct {
	*Options
	queue *workQueue
}

// startMachineLookups starts to look up the Machines of waiting claims, where subnets of the pool serve failure
// domains, and returns the delay until the next lookup; 0 means never. Reconciles of the pool do not wait for it: a
// lookup that hangs must not delay releases, or claims whose Machines are known. It also runs where another manager
// holds the pool: without it this manager does not know whether there is work.
func (ml *machineLookups) startMachineLookups(p *grants.Pool, now time.Time) time.Duration {
	if lookups := ml.beginMachineLookups(p, now); len(lookups) > 0 {
		ctx := ml.queue.jobContext()
		go func() {
			ml.runMachineLookups(ctx, p, lookups, ml.now)
			ml.queue.enqueuePool(p.Key)
		}()
	}
	return ml.nextMachineLookup(p, now)
}

// findMachinesAndWait looks up the Machines of waiting claims, where subnets of the pool serve failure domains, and
// waits for the results: for a caller without reconciles, as a Snapshot.
func (ml *machineLookups) findMachinesAndWait(ctx context.Context, p *grants.Pool, now time.Time) {
	ml.runMachineLookups(ctx, p, ml.beginMachineLookups(p, now), func() time.Time { return now })
}

func (ml *machineLookups) beginMachineLookups(p *grants.Pool, now time.Time) []grants.MachineLookupRequest {
	if ml.FindMachine == nil {
		return nil
	}
	m := p.Lock()
	defer m.Unlock()
	return m.Lookups.BeginMachineLookups(now)
}

// runMachineLookups looks up the Machines of claims. Each result is recorded as soon as it is found.
func (ml *machineLookups) runMachineLookups(ctx context.Context, p *grants.Pool, lookups []grants.MachineLookupRequest, now func() time.Time) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	workqueue.ParallelizeUntil(ctx, ml.Writers, len(lookups), func(i int) {
		of := lookups[i]
		found, err := ml.FindMachine(ctx, of.Name.Namespace, of.Owners)
		var problem *grants.Refusal
		if err != nil {
			problem = grants.AllocationFailed("the Machine of this claim, which determines the failure domain, is unknown: %v", err)
		}
		m := p.Lock()
		m.Lookups.RecordMachine(of, found, problem, now())
		m.Unlock()
	})
	m := p.Lock()
	m.Lookups.EndMachineLookups(lookups)
	m.Unlock()
}

// nextMachineLookup returns the delay until a Machine should be looked up again, or until a result found meanwhile
// should be read; 0 means never.
func (ml *machineLookups) nextMachineLookup(p *grants.Pool, now time.Time) time.Duration {
	if ml.FindMachine == nil {
		return 0
	}
	m := p.Lock()
	defer m.Unlock()
	return m.Lookups.NextMachineLookupDelay(now)
}

// admitByMachine decides on a claim that nothing else blocks by what is known of its Machine.
func (ml *machineLookups) admitByMachine(m *grants.PoolState, c *grants.Claimant, so grants.AdmissionResult) grants.AdmissionResult {
	admitted := m.Lookups.AdmitByMachine(c)
	if admitted.Wait && ml.FindMachine == nil {
		so.Refusal = grants.PoolNotReady("%s has subnets for failure domains, and this manager runs without --failure-domains; apply component-failure-domains.yaml of its release and restart it", m.Base.Key)
		return so
	}
	so.Wait, so.Quiet, so.Refusal = admitted.Wait, admitted.Quiet, admitted.Refusal
	return so
}
