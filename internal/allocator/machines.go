package allocator

import (
	"context"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
)

// findMachinesAndWait looks up the Machines of waiting claims, where subnets of the pool serve failure domains, and
// waits for the results: for a caller without reconciles, as a Snapshot.
func (a *Allocator) findMachinesAndWait(ctx context.Context, p *grants.Pool, now time.Time) {
	a.runMachineLookups(ctx, p, a.beginMachineLookups(p, now), func() time.Time { return now })
}

// startMachineLookups starts to look up the Machines of waiting claims, where subnets of the pool serve failure
// domains, and returns the delay until the next lookup; 0 means never. Reconciles of the pool do not wait for it: a
// lookup that hangs must not delay releases, or claims whose Machines are known. It also runs where another manager
// holds the pool: without it this manager does not know whether there is work.
func (a *Allocator) startMachineLookups(p *grants.Pool, now time.Time) time.Duration {
	if lookups := a.beginMachineLookups(p, now); len(lookups) > 0 {
		ctx := a.jobContext()
		go func() {
			a.runMachineLookups(ctx, p, lookups, a.now)
			a.enqueuePool(p.Key)
		}()
	}
	return a.nextMachineLookup(p, now)
}

func (a *Allocator) beginMachineLookups(p *grants.Pool, now time.Time) []grants.MachineLookupRequest {
	if a.FindMachine == nil {
		return nil
	}
	m := p.Lock()
	defer m.Unlock()
	return m.Lookups.BeginMachineLookups(now)
}

// runMachineLookups looks up the Machines of claims. Each result is recorded as soon as it is found.
func (a *Allocator) runMachineLookups(ctx context.Context, p *grants.Pool, lookups []grants.MachineLookupRequest, now func() time.Time) {
	ctx, cancel := withRequestTimeout(ctx)
	defer cancel()
	workqueue.ParallelizeUntil(ctx, a.Writers, len(lookups), func(i int) {
		of := lookups[i]
		found, err := a.FindMachine(ctx, of.Name.Namespace, of.Owners)
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
func (a *Allocator) nextMachineLookup(p *grants.Pool, now time.Time) time.Duration {
	if a.FindMachine == nil {
		return 0
	}
	m := p.Lock()
	defer m.Unlock()
	return m.Lookups.NextMachineLookupDelay(now)
}

// minWaitResult returns the result that requeues a pool after the shorter of wait and lookupWait, the delay until the next
// lookup of Machines; 0 means never.
func minWaitResult(wait, lookupWait time.Duration) reconcile.Result {
	if lookupWait > 0 {
		wait = grants.MinWait(wait, lookupWait)
	}
	return reconcile.Result{RequeueAfter: wait}
}

// admitByMachine decides on a claim that nothing else blocks by what is known of its Machine.
func (a *Allocator) admitByMachine(m *grants.PoolState, c *grants.Claimant, so grants.AdmissionResult) grants.AdmissionResult {
	admitted := m.Lookups.AdmitByMachine(c)
	if admitted.Wait && a.FindMachine == nil {
		so.Refusal = grants.PoolNotReady("%s has subnets for failure domains, and this manager runs without --failure-domains; apply component-failure-domains.yaml of its release and restart it", m.Base.Key)
		return so
	}
	so.Wait, so.Quiet, so.Refusal = admitted.Wait, admitted.Quiet, admitted.Refusal
	return so
}
