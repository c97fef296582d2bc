package nodeipam

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// Blocks are the IPAllocations that a Cluster has for the pod CIDRs of its Nodes, as the API server has them.
type Blocks interface {
	// Look reads one; false: there is none.
	Look(ctx context.Context, name string) (Block, bool, error)
	// Ask makes one, in the place of an open one that is lost or, if that is the zero value, of any addresses. It returns what there
	// is; false: something else has the name.
	Ask(ctx context.Context, name string, of podcidr.Ref, from Source, lost fence.Open) (Block, bool, error)
	// Guard puts our finalizer on, LetGo takes it off one that is being deleted; Delete deletes.
	Guard(ctx context.Context, b Block) error
	LetGo(ctx context.Context, b Block) error
	Delete(ctx context.Context, b Block) error
}

// tend does what was decided on blocks beside the commit. It returns when there is more to do. What failed is tried again
// after a while, and holds up nothing else.
func (s *Site) tend(ctx context.Context, g growth) (time.Duration, error) {
	m := s.lock()
	holder, again := m.holder, m.relisted
	m.relisted = false
	m.Unlock()
	if again {
		g.wait = time.Millisecond // what was committed has consequences
	}
	if !holder || len(g.errands) == 0 {
		return g.wait, nil
	}
	listed := false
	for _, e := range g.errands {
		m := s.lock()
		wait, early := m.vain[e.name].until.Sub(s.Now()), e.do == letGo && !m.ended[e.block.UID]
		m.Unlock()
		if wait > 0 {
			g.wait = sooner(g.wait, wait)
			continue
		}
		if early {
			continue // no commit says yet that it is closed: no list of all Nodes helps
		}
		if e.do == letGo && !listed {
			if err := s.list(ctx); err != nil {
				return 0, err
			}
			listed = true
		}
		news, err := s.doErrand(ctx, e)
		if err != nil {
			s.failed(ctx, err, "A block for pod CIDRs has to wait", "block", e.name)
		}
		if wait := s.tended(e, err); wait > 0 {
			g.wait = sooner(g.wait, wait)
		}
		if news {
			g.wait = time.Millisecond
		}
	}
	return g.wait, nil
}

// tended notes what became of a request, and returns when it is made again, if it failed.
func (s *Site) tended(e errand, err error) time.Duration {
	m := s.lock()
	defer m.Unlock()
	if e.do == askFor {
		m.askErr = err
	}
	if err == nil {
		delete(m.vain, e.name)
		return 0
	}
	v := m.vain[e.name]
	delay := term.RetryDelay(v.failures)
	if term.RefusedForGood(err) {
		delay = max(delay, term.LastTry)
	}
	now := s.Now()
	again := term.Later(now, delay)
	m.vain[e.name] = blocked{v.failures + 1, again}
	return again.Sub(now)
}

// doErrand does one errand. It reports whether something is known by it that was not before.
func (s *Site) doErrand(ctx context.Context, e errand) (news bool, err error) {
	switch e.do {
	case lookAt:
		return s.lookAtBlock(ctx, e.name)
	case guardIt:
		return false, s.Blocks.Guard(ctx, e.block)
	case giveBack:
		return s.giveBack(ctx, e.block)
	case letGo:
		m := s.lock()
		free := m.holder && m.ended[e.block.UID] && m.used(e.block) == 0
		m.Unlock()
		if !free {
			return false, nil
		}
		return false, s.Blocks.LetGo(ctx, e.block)
	case askFor:
		err := s.ask(ctx, e)
		return err == nil, err
	}
	return false, fmt.Errorf("block %s: nobody knows how to do %d", e.name, e.do)
}

// giveBack deletes a block as it was when that was decided. One that has changed since is read, and decided on anew.
func (s *Site) giveBack(ctx context.Context, b Block) (news bool, err error) {
	err = s.Blocks.Delete(ctx, b)
	if !apierrors.IsConflict(err) {
		return false, err
	}
	if news, err := s.lookAtBlock(ctx, b.Name); !news || err != nil {
		return false, err
	}
	m := s.lock()
	defer m.Unlock()
	if m.blocks[b.Name].Version == b.Version {
		return false, err // it is refused as it is, and waits
	}
	return true, nil
}

// lookAtBlock reads a block anew. It reports whether something is known by it that was not before.
func (s *Site) lookAtBlock(ctx context.Context, name string) (news bool, err error) {
	b, is, err := s.Blocks.Look(ctx, name)
	if err != nil {
		return false, err
	}
	m := s.lock()
	defer m.Unlock()
	if !is {
		news = !m.missing[name]
		m.missing[name] = true
		return news, nil
	}
	m.sawBlock(b, s.Now())
	return true, nil
}

// ask asks for a block.
func (s *Site) ask(ctx context.Context, e errand) error {
	m := s.lock()
	blocked := m.blocked[e.of.Ref].until.After(s.Now()) || m.shut[e.of.Ref]
	m.Unlock()
	if blocked {
		return nil // nobody would hold its ClusterCIDR
	}
	b, ours, err := s.Blocks.Ask(ctx, e.name, e.of.Ref, *e.source, e.lost)
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
