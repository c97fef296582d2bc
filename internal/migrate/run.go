package migrate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/annotations"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// patience is for how long others may be ahead of a write: the garbage collector writes each IPAddress of which the
// claim goes, and a manager the status of its pools. Every conflict is settled on what there is then.
var patience = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10}

// heldReason is why the addresses that move are in status.held of our pool.
const heldReason = "Importing"

// Move is the import of one pool.
type Move struct {
	Client client.Client
	Source Source
	// To is the name of our pool, empty: that of the source.
	To string
	// JournalNamespace is where the journal is kept.
	JournalNamespace string
	// WithoutCluster takes claims along that name no Cluster.
	WithoutCluster bool
	// Say is told what is done.
	Say func(format string, args ...any)
}

// ErrProblems says that something stands in the way: the Plan has it.
var ErrProblems = errors.New("something stands in the way of the import")

func (m *Move) store() store {
	return store{client: m.Client, namespace: m.JournalNamespace, source: m.Source}
}

// Status tells where an import is: empty where none has begun.
func (m *Move) Status(ctx context.Context) (phase string, err error) {
	j, err := m.store().read(ctx)
	if j == nil {
		return "", err
	}
	return j.Phase, err
}

// Plan tells what an import that has not begun would do. It writes nothing.
func (m *Move) Plan(ctx context.Context) (*Plan, error) {
	target := m.Source.target(m.To)
	in, err := gather(ctx, m.Client, m.Source, target)
	if err != nil {
		return nil, err
	}
	return plan(m.Source, target, in, m.WithoutCluster), nil
}

// Apply imports the pool, or goes on with an import that has begun. The Plan is nil where one had. Where one has ended it does
// nothing: who was ended after the last write, and asks once more, is told that it is done.
func (m *Move) Apply(ctx context.Context) (*Plan, error) {
	j, err := m.store().read(ctx)
	if err != nil {
		return nil, err
	}
	var p *Plan
	switch {
	case j == nil:
		if p, err = m.Plan(ctx); err != nil {
			return nil, err
		}
		if len(p.Problems) > 0 {
			return p, ErrProblems
		}
		j = &journal{Source: m.Source, Target: m.Source.target(m.To).Name, Metal3: p.metal3, Entries: p.entries}
		if err := m.store().begin(ctx, j); err != nil {
			return p, err
		}
		m.Say("journal in ConfigMap %s/%s: %d claims", m.JournalNamespace, m.store().name(""), len(j.Entries))
	case j.Phase == imported:
		m.Say("the import has ended already; --forget removes the journal, and with it the way back")
		return nil, nil
	case j.Phase != importing:
		return nil, fmt.Errorf("the import of %s is being rolled back: end that with --rollback", m.Source)
	default:
		m.Say("going on with the import of %s", m.Source)
	}
	return p, m.forward(ctx, j)
}

// forward does what is left of an import.
func (m *Move) forward(ctx context.Context, j *journal) error {
	target := m.Source.target(j.Target)
	source, err := m.ready(ctx, j)
	if err != nil {
		return err
	}
	if err := m.Source.origin().leave(ctx, m, j); err != nil {
		return err
	}
	pool, err := m.ensurePool(ctx, target, source)
	if err != nil {
		return err
	}
	if annotations.HasPaused(pool) {
		if err := m.hold(ctx, j, pool); err != nil {
			return err
		}
	}
	from, to := sides(m.Source, source, target, pool)
	if err := m.turnAll(ctx, j, from, to); err != nil {
		return err
	}
	late, err := m.Source.origin().late(ctx, m.Client, j)
	if err != nil {
		return err
	}
	if err := m.noneLate(late, from); err != nil {
		return err
	}
	if err := m.Source.origin().leaveWaiting(ctx, m); err != nil {
		return err
	}
	if err := m.open(ctx, target); err != nil {
		return err
	}
	return m.store().enter(ctx, j, imported)
}

// Rollback undoes an import, finished or not. Where there is none it does nothing: the journal goes with the last write.
func (m *Move) Rollback(ctx context.Context) error {
	j, err := m.store().read(ctx)
	switch {
	case err != nil:
		return err
	case j == nil:
		return m.nothingBegan(ctx)
	case j.Phase == rolledBack:
		return m.store().forget(ctx, j)
	}
	source, err := m.ready(ctx, j)
	if err != nil {
		return err
	}
	target := m.Source.target(j.Target)
	pool, err := target.Get(ctx, m.Client)
	exists := err == nil
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s: %w", target, err)
	}
	to, from := sides(m.Source, source, target, pool)
	if exists {
		if err := m.close(ctx, pool); err != nil {
			return err
		}
		if err := m.hold(ctx, j, pool); err != nil {
			return err
		}
	}
	if err := m.backward(ctx, j, target, from, to); err != nil {
		return err
	}
	if exists {
		if err := m.removePool(ctx, target, pool); err != nil {
			return err
		}
	}
	if err := m.Source.origin().comeBack(ctx, m, j); err != nil {
		return err
	}
	if err := m.store().enter(ctx, j, rolledBack); err != nil {
		return err
	}
	return m.store().forget(ctx, j)
}

// nothingBegan reports an error unless the pool is there and no namespace has a journal of it: an import may have another
// --journal-namespace, and a name may be mistyped.
func (m *Move) nothingBegan(ctx context.Context) error {
	none := fmt.Sprintf("there is no import of %s to roll back in namespace %s", m.Source, m.JournalNamespace)
	elsewhere, err := m.store().elsewhere(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%s; whether another namespace has its journal is not known: %w", none, err)
	case elsewhere != "":
		return fmt.Errorf("%s; its journal is in namespace %s: repeat the command with --journal-namespace %s", none, elsewhere, elsewhere)
	}
	if _, err := m.Source.origin().pool(ctx, m.Client, nil); err != nil {
		return fmt.Errorf("%s: %w", none, err)
	}
	m.Say("%s; it was rolled back already, or never began", none)
	return nil
}

// backward brings everything back. It finds nothing to do where the import had not come so far.
func (m *Move) backward(ctx context.Context, j *journal, target pools.Key, from, to side) error {
	if err := m.knowAll(ctx, j, target, from); err != nil {
		return err
	}
	if j.Phase == imported {
		if err := m.noteGone(ctx, j); err != nil {
			return err
		}
	}
	if j.Phase != rollingBack {
		if err := m.store().enter(ctx, j, rollingBack); err != nil {
			return err
		}
	}
	if err := m.turnAll(ctx, j, from, to); err != nil {
		return err
	}
	late, err := usersOf(ctx, m.Client, m.Source.Namespace, from.ref)
	if err != nil {
		return err
	}
	return m.noneLate(late, from)
}

// Forget removes the journal of an import that is done.
func (m *Move) Forget(ctx context.Context) error {
	j, err := m.store().read(ctx)
	switch {
	case err != nil:
		return err
	case j == nil:
		return fmt.Errorf("there is no journal of %s in namespace %s", m.Source, m.JournalNamespace)
	case j.Phase != imported && j.Phase != rolledBack:
		return fmt.Errorf("the import of %s has not ended: --apply or --rollback first", m.Source)
	}
	return m.store().forget(ctx, j)
}

// ready wants that nobody serves the old pool, and that the Clusters are paused, before each run.
func (m *Move) ready(ctx context.Context, j *journal) (*oldPool, error) {
	o := m.Source.origin()
	source, err := o.pool(ctx, m.Client, j)
	if err != nil {
		return nil, err
	}
	in := &found{pool: source}
	if err := o.surroundings(ctx, m.Client, in); err != nil {
		return nil, err
	}
	var claims []ipamv1.IPAddressClaim
	for _, e := range j.Entries {
		claims = append(claims, *e.Claim)
	}
	if in.clusters, err = clustersOf(ctx, m.Client, claims); err != nil {
		return nil, err
	}
	maps.DeleteFunc(in.clusters, func(_ client.ObjectKey, c *clusterv1.Cluster) bool { return c == nil }) // gone meanwhile
	p := &Plan{Problems: o.unserved(in)}
	p.clusters(in, true)
	if err := p.firstProblem(); err != nil {
		return nil, err
	}
	return source, nil
}

func sides(source Source, old *oldPool, target pools.Key, pool v1alpha1.Pool) (from, to side) {
	from = side{ref: source.ref(), owner: metav1.OwnerReference{
		APIVersion: source.groupVersion().String(), Kind: source.Kind, Name: source.Name, UID: old.UID,
	}}
	to = side{ours: true, ref: target.Ref(), owner: metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: target.Kind, Name: target.Name, UID: pool.GetUID(),
	}}
	return from, to
}

// ensurePool creates our pool, paused, if that has not been done.
func (m *Move) ensurePool(ctx context.Context, target pools.Key, source *oldPool) (v1alpha1.Pool, error) {
	pool, err := target.Get(ctx, m.Client)
	if err == nil {
		if pool.GetAnnotations()[ImportAnnotation] != m.Source.String() {
			return nil, fmt.Errorf("%s was not made by this import", target)
		}
		return pool, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading %s: %w", target, err)
	}
	p := &Plan{}
	p.translate(m.Source, target, &found{pool: source})
	if err := p.firstProblem(); err != nil {
		return nil, err
	}
	if err := m.Client.Create(ctx, p.pool); err != nil {
		return nil, fmt.Errorf("creating %s: %w", target, err)
	}
	m.Say("%s created, paused", target)
	return p.pool, nil
}

// hold keeps all addresses that move out of anybody's reach, in the status of our pool.
func (m *Move) hold(ctx context.Context, j *journal, pool v1alpha1.Pool) error {
	var b netipx.IPSetBuilder
	for _, e := range j.Entries {
		if e.Address == nil {
			continue
		}
		if ip, err := netip.ParseAddr(e.Address.Spec.Address); err == nil {
			b.Add(ip.Unmap())
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return fmt.Errorf("holding the addresses: %w", err)
	}
	again := false
	err = retry.RetryOnConflict(patience, func() error { // a manager writes it, too
		if again {
			if err := m.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
				return err
			}
		}
		again = true
		status := pool.PoolStatus()
		status.Held = slices.DeleteFunc(status.Held, func(h v1alpha1.HeldRange) bool { return h.Reason == heldReason })
		for _, r := range set.Ranges() {
			status.Held = append(status.Held, v1alpha1.HeldRange{First: r.From().String(), Last: r.To().String(), Reason: heldReason})
		}
		return m.Client.Status().Update(ctx, pool)
	})
	if err != nil {
		return fmt.Errorf("holding the addresses in the status of %s (try again): %w", pools.KeyOf(pool), err)
	}
	return nil
}

// turnAll moves every entry.
func (m *Move) turnAll(ctx context.Context, j *journal, from, to side) error {
	t := &turner{client: m.Client, from: from, to: to, release: func(ctx context.Context, key client.ObjectKey) error {
		if slices.Contains(j.Released, key.String()) {
			return nil
		}
		j.Released = append(j.Released, key.String())
		return m.store().save(ctx, j)
	}}
	for i, e := range j.Entries {
		err := retry.RetryOnConflict(patience, func() error {
			return m.Source.origin().turn(ctx, t, e, slices.Contains(j.Released, e.key().String()))
		})
		if err != nil {
			return err
		}
		what := "waits for an address"
		switch {
		case slices.Contains(j.Released, e.key().String()):
			what = "was let go"
		case e.Address != nil:
			what = e.Address.Spec.Address
		}
		m.Say("%d/%d claim %s: %s", i+1, len(j.Entries), e.key(), what)
	}
	return nil
}
