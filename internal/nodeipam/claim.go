package nodeipam

import (
	"maps"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// Claim has the site taken over once, as if a Node waited: the caller has something to do that only one manager should.
// Who loses the site meanwhile does not claim it again for that: two managers that want different things would take turns.
func (s *Site) Claim() {
	m := s.lock()
	defer m.Unlock()
	m.claimed = true
}

// outdated are the statuses that differ from what a manager knows, which is not the holder.
type outdated struct {
	statuses map[podcidr.Ref]string
	since    time.Time
	// claimed: the site was claimed for them. It is not again before all statuses were right.
	claimed bool
}

// ClaimOutdated claims the site when its holder does not write statuses: it is gone, and no Node that waits has another manager
// take over. statuses are those of ClusterCIDRs that differ from what this manager knows, each with what it says, so that a holder
// that lags behind is not taken for one that is gone. They have to stay as they are for a time. It returns when to ask again, 0 if
// there is no need to.
func (s *Site) ClaimOutdated(statuses map[podcidr.Ref]string, within time.Duration) time.Duration {
	m := s.lock()
	defer m.Unlock()
	o, now := &m.outdated, s.Now()
	switch {
	case len(statuses) == 0:
		*o = outdated{}
		m.takeAsTold()
		return 0
	case o.claimed:
		return 0
	case !maps.Equal(o.statuses, statuses):
		o.statuses, o.since = statuses, now
		return within
	}
	if left := within - now.Sub(o.since); left > 0 {
		return left
	}
	o.claimed, m.claimed = true, true
	return time.Millisecond // the next call of Reconcile takes it over
}

// Holds reports whether this manager is the holder, as far as it knows.
func (s *Site) Holds() bool {
	m := s.lock()
	defer m.Unlock()
	return m.holder && !m.suspect
}
