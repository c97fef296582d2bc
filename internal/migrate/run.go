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

// conflictBackoff limits how long other writers may delay a write: the garbage collector writes each IPAddress whose
// claim is deleted, and a manager writes the status of its pools. After every conflict the decision is made on the new
// version.
var conflictBackoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10}

// importHeldReason is the reason of the addresses that are moved in status.held of our pool.
const importHeldReason = "Importing"

// Import is the import of one pool.
type Import struct {
	Client client.Client
	Source Source
	// TargetName is the name of our pool; empty for the name of the source.
	TargetName string
	// JournalNamespace is the namespace of the journal.
	JournalNamespace string
	// WithoutCluster includes claims that name no Cluster.
	WithoutCluster bool
	// Reportf reports each step that is done.
	Reportf func(format string, args ...any)
}

// ErrProblems reports that an import is not possible: Plan.Problems lists the obstacles.
var ErrProblems = errors.New("the import cannot run yet")

func (im *Import) journalStore() journalStore {
	return journalStore{client: im.Client, namespace: im.JournalNamespace, source: im.Source}
}

// CurrentPhase returns the phase of an import; "" where none has begun.
func (im *Import) CurrentPhase(ctx context.Context) (phase string, err error) {
	j, err := im.journalStore().readJournal(ctx)
	if j == nil {
		return "", err
	}
	return j.Phase, err
}

// Plan returns the effect of an import that has not begun. It writes nothing.
func (im *Import) Plan(ctx context.Context) (*Plan, error) {
	target := im.Source.targetKey(im.TargetName)
	in, err := gatherInput(ctx, im.Client, im.Source, target)
	if err != nil {
		return nil, err
	}
	return newPlan(im.Source, target, in, im.WithoutCluster), nil
}

// Apply imports the pool, or resumes an import, for which it returns a nil Plan. It does nothing where the import has
// ended: a user whose command was interrupted after the last write, and who repeats it, gets the report that the import
// is done.
func (im *Import) Apply(ctx context.Context) (*Plan, error) {
	j, err := im.journalStore().readJournal(ctx)
	if err != nil {
		return nil, err
	}
	var p *Plan
	switch {
	case j == nil:
		if p, err = im.Plan(ctx); err != nil {
			return nil, err
		}
		if len(p.Problems) > 0 {
			return p, ErrProblems
		}
		j = &journal{Source: im.Source, Target: im.Source.targetKey(im.TargetName).Name, Metal3: p.metal3Object, Entries: p.entries}
		if err := im.journalStore().createJournal(ctx, j); err != nil {
			return p, err
		}
		im.Reportf("journal in ConfigMap %s/%s: %d claims", im.JournalNamespace, im.journalStore().configMapName(""), len(j.Entries))
	case j.Phase == phaseImported:
		im.Reportf("the import has ended already; --forget removes the journal, and with it the way back")
		return nil, nil
	case j.Phase != phaseImporting:
		return nil, fmt.Errorf("the import of %s is being rolled back: end that with --rollback", im.Source)
	default:
		im.Reportf("going on with the import of %s", im.Source)
	}
	return p, im.runImport(ctx, j)
}

// runImport does the remaining steps of an import.
func (im *Import) runImport(ctx context.Context, j *journal) error {
	target := im.Source.targetKey(j.Target)
	source, err := im.checkPreconditions(ctx, j)
	if err != nil {
		return err
	}
	if err := im.Source.provider().retirePool(ctx, im, j); err != nil {
		return err
	}
	pool, err := im.ensurePool(ctx, target, source)
	if err != nil {
		return err
	}
	if annotations.HasPaused(pool) {
		if err := im.holdAddresses(ctx, j, pool); err != nil {
			return err
		}
	}
	from, to := newPoolSides(im.Source, source, target, pool)
	if err := im.moveEntries(ctx, j, from, to); err != nil {
		return err
	}
	late, err := im.Source.provider().readLateUsers(ctx, im.Client, j)
	if err != nil {
		return err
	}
	if err := im.requireNoLateAddresses(late, from); err != nil {
		return err
	}
	if err := im.Source.provider().releaseWaiting(ctx, im); err != nil {
		return err
	}
	if err := im.openTargetPool(ctx, target); err != nil {
		return err
	}
	return im.journalStore().enterPhase(ctx, j, phaseImported)
}

// Rollback undoes an import, finished or not. It does nothing where there is no journal, as the last write of a
// rollback deletes that.
func (im *Import) Rollback(ctx context.Context) error {
	j, err := im.journalStore().readJournal(ctx)
	switch {
	case err != nil:
		return err
	case j == nil:
		return im.checkNoImport(ctx)
	case j.Phase == phaseRolledBack:
		return im.journalStore().deleteJournal(ctx, j)
	}
	source, err := im.checkPreconditions(ctx, j)
	if err != nil {
		return err
	}
	target := im.Source.targetKey(j.Target)
	pool, err := target.GetPool(ctx, im.Client)
	exists := err == nil
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading %s: %w", target, err)
	}
	to, from := newPoolSides(im.Source, source, target, pool)
	if exists {
		if err := im.closeTargetPool(ctx, pool); err != nil {
			return err
		}
		if err := im.holdAddresses(ctx, j, pool); err != nil {
			return err
		}
	}
	if err := im.runRollback(ctx, j, target, from, to); err != nil {
		return err
	}
	if exists {
		if err := im.deleteTargetPool(ctx, target, pool); err != nil {
			return err
		}
	}
	if err := im.Source.provider().restorePool(ctx, im, j); err != nil {
		return err
	}
	if err := im.journalStore().enterPhase(ctx, j, phaseRolledBack); err != nil {
		return err
	}
	return im.journalStore().deleteJournal(ctx, j)
}

// checkNoImport returns an error unless the pool exists and no namespace has a journal of it: the import may have
// another --journal-namespace, and the name may be mistyped.
func (im *Import) checkNoImport(ctx context.Context) error {
	none := fmt.Sprintf("there is no import of %s to roll back in namespace %s", im.Source, im.JournalNamespace)
	elsewhere, err := im.journalStore().findOtherNamespace(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%s; whether another namespace has its journal is not known: %w", none, err)
	case elsewhere != "":
		return fmt.Errorf("%s; its journal is in namespace %s: repeat the command with --journal-namespace %s", none, elsewhere, elsewhere)
	}
	if _, err := im.Source.provider().readPool(ctx, im.Client, nil); err != nil {
		return fmt.Errorf("%s: %w", none, err)
	}
	im.Reportf("%s; it was rolled back already, or never began", none)
	return nil
}

// runRollback moves all entries back. It has nothing to do for those that were not imported yet.
func (im *Import) runRollback(ctx context.Context, j *journal, target pools.Key, from, to poolSide) error {
	if err := im.requireOnlyImported(ctx, j, target, from); err != nil {
		return err
	}
	if j.Phase == phaseImported {
		if err := im.recordReleased(ctx, j); err != nil {
			return err
		}
	}
	if j.Phase != phaseRollingBack {
		if err := im.journalStore().enterPhase(ctx, j, phaseRollingBack); err != nil {
			return err
		}
	}
	if err := im.moveEntries(ctx, j, from, to); err != nil {
		return err
	}
	late, err := readUsersForPool(ctx, im.Client, im.Source.Namespace, from.poolRef)
	if err != nil {
		return err
	}
	return im.requireNoLateAddresses(late, from)
}

// DeleteJournal deletes the journal of an import that is done.
func (im *Import) DeleteJournal(ctx context.Context) error {
	j, err := im.journalStore().readJournal(ctx)
	switch {
	case err != nil:
		return err
	case j == nil:
		return fmt.Errorf("there is no journal of %s in namespace %s", im.Source, im.JournalNamespace)
	case j.Phase != phaseImported && j.Phase != phaseRolledBack:
		return fmt.Errorf("the import of %s has not ended: --apply or --rollback first", im.Source)
	}
	return im.journalStore().deleteJournal(ctx, j)
}

// checkPreconditions requires, before each run, that no provider serves the old pool and that the Clusters are paused.
func (im *Import) checkPreconditions(ctx context.Context, j *journal) (*sourcePool, error) {
	o := im.Source.provider()
	source, err := o.readPool(ctx, im.Client, j)
	if err != nil {
		return nil, err
	}
	in := &planInput{pool: source}
	if err := o.readEnvironment(ctx, im.Client, in); err != nil {
		return nil, err
	}
	var claims []ipamv1.IPAddressClaim
	for _, e := range j.Entries {
		claims = append(claims, *e.Claim)
	}
	if in.clusters, err = readClusters(ctx, im.Client, claims); err != nil {
		return nil, err
	}
	maps.DeleteFunc(in.clusters, func(_ client.ObjectKey, c *clusterv1.Cluster) bool { return c == nil }) // deleted meanwhile
	p := &Plan{Problems: o.findServingProblems(in)}
	p.checkClustersPaused(in, true)
	if err := p.firstProblem(); err != nil {
		return nil, err
	}
	return source, nil
}

func newPoolSides(source Source, old *sourcePool, target pools.Key, pool v1alpha1.Pool) (from, to poolSide) {
	from = poolSide{poolRef: source.poolRef(), ownerRef: metav1.OwnerReference{
		APIVersion: source.groupVersion().String(), Kind: source.Kind, Name: source.Name, UID: old.UID,
	}}
	to = poolSide{isTarget: true, poolRef: target.PoolReference(), ownerRef: metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: target.Kind, Name: target.Name, UID: pool.GetUID(),
	}}
	return from, to
}

// ensurePool creates our pool, paused, if it does not exist.
func (im *Import) ensurePool(ctx context.Context, target pools.Key, source *sourcePool) (v1alpha1.Pool, error) {
	pool, err := target.GetPool(ctx, im.Client)
	if err == nil {
		if pool.GetAnnotations()[ImportAnnotation] != im.Source.String() {
			return nil, fmt.Errorf("%s was not made by this import", target)
		}
		return pool, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading %s: %w", target, err)
	}
	p := &Plan{}
	p.translatePool(im.Source, target, &planInput{pool: source})
	if err := p.firstProblem(); err != nil {
		return nil, err
	}
	if err := im.Client.Create(ctx, p.targetPool); err != nil {
		return nil, fmt.Errorf("creating %s: %w", target, err)
	}
	im.Reportf("%s created, paused", target)
	return p.targetPool, nil
}

// holdAddresses records all addresses that move in status.held of our pool, so that no claimant gets them.
func (im *Import) holdAddresses(ctx context.Context, j *journal, pool v1alpha1.Pool) error {
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
	err = retry.RetryOnConflict(conflictBackoff, func() error { // a manager writes the status, too
		if again {
			if err := im.Client.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
				return err
			}
		}
		again = true
		status := pool.PoolStatus()
		status.Held = slices.DeleteFunc(status.Held, func(h v1alpha1.HeldRange) bool { return h.Reason == importHeldReason })
		for _, r := range set.Ranges() {
			status.Held = append(status.Held, v1alpha1.HeldRange{First: r.From().String(), Last: r.To().String(), Reason: importHeldReason})
		}
		return im.Client.Status().Update(ctx, pool)
	})
	if err != nil {
		return fmt.Errorf("holding the addresses in the status of %s (try again): %w", pools.KeyForPool(pool), err)
	}
	return nil
}

// moveEntries moves every entry.
func (im *Import) moveEntries(ctx context.Context, j *journal, from, to poolSide) error {
	t := &entryMover{client: im.Client, from: from, to: to, recordRelease: func(ctx context.Context, key client.ObjectKey) error {
		if slices.Contains(j.Released, key.String()) {
			return nil
		}
		j.Released = append(j.Released, key.String())
		return im.journalStore().saveJournal(ctx, j)
	}}
	for i, e := range j.Entries {
		err := retry.RetryOnConflict(conflictBackoff, func() error {
			return im.Source.provider().moveEntry(ctx, t, e, slices.Contains(j.Released, e.key().String()))
		})
		if err != nil {
			return err
		}
		result := "waits for an address"
		switch {
		case slices.Contains(j.Released, e.key().String()):
			result = "was released"
		case e.Address != nil:
			result = e.Address.Spec.Address
		}
		im.Reportf("%d/%d claim %s: %s", i+1, len(j.Entries), e.key(), result)
	}
	return nil
}
