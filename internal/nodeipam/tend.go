package nodeipam

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Blocks are the IPAllocations that a Cluster has for the pod CIDRs of its Nodes, as the API server has them.
type Blocks interface {
	// Look reads one; false: there is none.
	Look(ctx context.Context, name string) (Block, bool, error)
	// Ask makes one, of some addresses or of just those, and returns what there is; false: something else has the name.
	Ask(ctx context.Context, name string, of podcidr.Ref, from Source, pinned netip.Prefix) (Block, bool, error)
	// Guard puts our finalizer on, LetGo takes it off one that is being deleted; Delete deletes.
	Guard(ctx context.Context, b Block) error
	LetGo(ctx context.Context, b Block) error
	Delete(ctx context.Context, b Block) error
}

// tend does what was decided on blocks beside the commit. It returns when there is more to do. What failed is tried again
// after a while, and nothing else meanwhile.
func (s *Site) tend(ctx context.Context, g growth) (time.Duration, error) {
	m := s.lock()
	wait, holder, again := m.askAfter.Sub(s.Now()), m.holder, m.relisted
	m.relisted = false
	m.Unlock()
	if again {
		g.wait = time.Millisecond // what was committed has consequences
	}
	if !holder || len(g.errands) == 0 || wait > 0 {
		return sooner(g.wait, max(wait, 0)), nil
	}
	listed := false
	for _, e := range g.errands {
		if e.do == letGo && !listed {
			if err := s.list(ctx); err != nil {
				return 0, err
			}
			listed = true
		}
		news, err := s.doErrand(ctx, e)
		if err != nil {
			log.FromContext(ctx).Error(err, "A block for pod CIDRs has to wait", "block", e.name)
			return sooner(g.wait, s.failedToTend(err)), nil
		}
		if news {
			g.wait = time.Millisecond
		}
	}
	m = s.lock()
	defer m.Unlock()
	m.askFailures, m.askErr = 0, nil
	return g.wait, nil
}

// failedToTend notes that a request failed, and returns when the next one is made.
func (s *Site) failedToTend(err error) time.Duration {
	m := s.lock()
	defer m.Unlock()
	delay := term.RetryDelay(m.askFailures)
	if term.RefusedForGood(err) {
		delay = max(delay, term.LastTry)
	}
	m.askFailures++
	m.askErr, m.askAfter = err, s.Now().Add(delay)
	return delay
}

// doErrand does one errand. It reports whether something is known by it that was not before.
func (s *Site) doErrand(ctx context.Context, e errand) (news bool, err error) {
	switch e.do {
	case lookAt:
		b, is, err := s.Blocks.Look(ctx, e.name)
		if err != nil {
			return false, err
		}
		m := s.lock()
		defer m.Unlock()
		if !is {
			news = !m.missing[e.name]
			m.missing[e.name] = true
			return news, nil
		}
		m.sawBlock(b, s.Now())
		return true, nil
	case guardIt:
		return false, s.Blocks.Guard(ctx, e.block)
	case giveBack:
		return false, s.Blocks.Delete(ctx, e.block)
	case letGo:
		m := s.lock()
		free := m.holder && m.ended[e.block.UID] && (!e.block.Prefix.IsValid() || m.books.InUse(e.block.Prefix) == 0)
		m.Unlock()
		if !free {
			return false, nil
		}
		return false, s.Blocks.LetGo(ctx, e.block)
	case askFor:
		return true, s.ask(ctx, e)
	}
	return false, fmt.Errorf("block %s: nobody knows how to do %d", e.name, e.do)
}

// ask asks for a block.
func (s *Site) ask(ctx context.Context, e errand) error {
	m := s.lock()
	blocked := m.blocked[e.of.Ref].until.After(s.Now()) || m.shut[e.of.Ref]
	m.Unlock()
	if blocked {
		return nil // nobody would hold its ClusterCIDR
	}
	b, ours, err := s.Blocks.Ask(ctx, e.name, e.of.Ref, *e.source, e.prefix)
	if err != nil {
		return err
	}
	m = s.lock()
	defer m.Unlock()
	if ours {
		m.sawBlock(b, s.Now())
	} else {
		m.taken[e.name] = s.Now().Add(takenFor) // the next one has another name
	}
	return nil
}
