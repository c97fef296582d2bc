package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	v1beta1conditions "sigs.k8s.io/cluster-api/util/conditions/deprecated/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
)

// serve brings a claim that has a grant, or an IPAddress already, to its end: the record on the
// claim, the IPAddress, the claim's status, strictly in this order (R1).
func (a *Allocator) serve(ctx context.Context, p *pool, c claim) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	p.mu.Lock()
	if !p.holder || p.base == nil {
		p.mu.Unlock()
		return nil
	}
	poolObj := p.base
	var rng netipx.IPRange
	existing, granted := p.addrs[nameOf(c.owner)], p.grants[c.owner.UID]
	switch {
	case existing != nil && (existing.claimUID == c.owner.UID || p.adoptable(&c, existing)):
		if !existing.ip.IsValid() {
			p.mu.Unlock()
			return fmt.Errorf("IPAddress %s has no valid address", existing.key())
		}
		rng = p.ledger.Unit(existing.ip)
	case granted != nil && granted.writable(a.now()): // this job may have waited
		rng, existing = granted.rng, nil
		if h := p.blocker(rng, c.owner); h != nil && h.Source == ledger.Object {
			// A restore can bring back a pool with grants that were given to somebody else since (R10).
			p.mu.Unlock()
			return fmt.Errorf("%s was granted to this claim, but %s has it; delete one of the two",
				poolutil.FormatRange(rng), describeHold(h))
		}
	default:
		p.mu.Unlock()
		return nil
	}
	text := p.recordOf(rng)
	recorded := c.recordText == text || (p.layout == nil && c.record.IsValid())
	var prefix int32
	var gateway string
	switch lost := c.lost; {
	case lost != nil && lost.ip == rng.From():
		prefix, gateway = lost.prefix, lost.gateway
	case p.layout != nil:
		prefix, gateway = p.layout.Network(rng.From())
		if c.mirrored && gateway == "" {
			gateway = poolObj.GetAnnotations()[incluster.GatewayAnnotation]
		}
	}
	p.mu.Unlock()

	if existing == nil && !granted.inherited && c.remembers() && c.record.From() != rng.From() && !c.mayForget() {
		// Somebody recorded another address. If it is still so after a takeover, a user wrote it.
		return a.doubt(ctx, p, c)
	}
	if existing != nil && existing.claimUID != c.owner.UID {
		if err := a.refreshClaim(ctx, p, c); err != nil {
			return err
		}
		if live, known := a.claimSnapshot(p, c.owner.UID); !known || live.deleting {
			return nil
		}
	}
	if !recorded || !c.finalized {
		next, err := a.record(ctx, p, c, text)
		if err != nil {
			return err
		}
		if next.deleting {
			return nil
		}
		c = next
	}
	if existing == nil {
		if err := a.create(ctx, p, c, poolObj, rng, prefix, gateway); err != nil {
			return err
		}
	} else if err := a.repair(ctx, p, c, poolObj, existing); err != nil {
		return err
	}
	if c.bound {
		return nil
	}
	return a.bind(ctx, p, c)
}

// doubt has the turn end: a claim remembers something else than we believe it was given, so what we believe of the
// pool is old. The reconcile ends it, which may be committing now.
func (a *Allocator) doubt(ctx context.Context, p *pool, c claim) error {
	if err := a.refreshClaim(ctx, p, c); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubted = true
	return errAgain
}

// adoptable tells whether an IPAddress of an earlier claim of the name may be this one's: the claim remembers it
// (R2; a move or a restore gives claims new UIDs), and nobody else was given the address since. It is, when a live read
// shows that this claim has the name: the other one is gone then.
func (p *pool) adoptable(c *claim, addr *address) bool {
	if !c.record.IsValid() || !addr.ip.IsValid() || c.record.From() != addr.ip || p.claims[addr.claimUID] != nil {
		return false
	}
	return !slices.ContainsFunc(p.ledger.Overlapping(p.ledger.Unit(addr.ip)), func(h *ledger.Hold) bool {
		other := p.claims[h.Owner.UID]
		former := h.UID == addr.uid || (addr.claimUID != "" && h.Owner.UID == addr.claimUID)
		return h.Source.Uses() && !former && h.Owner.UID != c.owner.UID &&
			(h.Source != ledger.Record || other == nil || !c.precedes(other))
	})
}

// record writes on the claim what it is given, together with our finalizer, before anything else.
func (a *Allocator) record(ctx context.Context, p *pool, c claim, text string) (claim, error) {
	next, err := a.patchClaim(ctx, c, map[string]any{
		"finalizers":  append(slices.Clone(c.others), c.finalizer()),
		"annotations": map[string]string{v1alpha1.AddressAnnotation: text},
	}, nil)
	if err != nil {
		return c, a.writeFailed(ctx, p, c, "record", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ours := next.record
	p.observeClaim(next) // it takes what was remembered before for the record
	if known := p.claims[c.owner.UID]; known != nil && known.record != ours {
		known.record = ours // from now on, whatever a user wrote
		p.noteRecord(known)
		p.sort(known)
	}
	return *next, nil
}

// patchClaim patches the metadata of a claim, fenced by UID and resource version (R3), or its status,
// where one is given, and returns what the claim is then.
func (a *Allocator) patchClaim(ctx context.Context, c claim, meta, status map[string]any) (*claim, error) {
	body := map[string]any{"metadata": fenced(meta, c.owner.UID, c.rv)}
	if status != nil {
		body["status"] = status
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	obj, patch := c.object(), client.RawPatch(types.MergePatchType, raw)
	if status != nil {
		err = a.Client.Status().Patch(ctx, obj, patch)
	} else {
		err = a.Client.Patch(ctx, obj, patch)
	}
	if err != nil {
		return nil, err
	}
	next, _ := observed(obj)
	return next, nil
}

// create makes the IPAddress. It is idempotent per claim: the name is the claim's, and the claim's
// UID among the owners tells whose it is.
func (a *Allocator) create(ctx context.Context, p *pool, c claim, poolObj v1alpha1.Pool, rng netipx.IPRange, prefix int32, gateway string) error {
	poolRef := p.key.ref()
	if c.mirrored {
		poolRef, _ = incluster.MirroredBy(p.key.Kind, p.key.Name)
	}
	obj := &ipamv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       c.owner.Namespace,
			Name:            c.owner.Name,
			Labels:          map[string]string{},
			Finalizers:      []string{AddressFinalizer},
			OwnerReferences: ownersOf(c, poolObj),
		},
		Spec: ipamv1.IPAddressSpec{
			ClaimRef: ipamv1.IPAddressClaimReference{Name: c.owner.Name},
			PoolRef:  poolRef,
			Address:  rng.From().String(),
			Prefix:   ptr.To(prefix),
			Gateway:  gateway,
		},
	}
	if c.cluster != "" {
		obj.Labels[clusterv1.ClusterNameLabel] = c.cluster
	}
	if c.watchLabel != "" {
		obj.Labels[clusterv1.WatchLabel] = c.watchLabel
	}
	err := a.Client.Create(ctx, obj)
	if err != nil {
		metrics.WriteErrs.WithLabelValues("create").Inc()
		if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating IPAddress %s: %w", nameOf(c.owner), err)
		}
		if err := a.Live.Get(ctx, nameOf(c.owner), obj); err != nil {
			return err
		}
	}
	addr := addressOf(obj)
	if key, ours := keyOfRef(obj.Namespace, obj.Spec.PoolRef); !ours || key != p.key {
		// Its end is none of this pool's events: the name is tried again.
		if ours {
			a.contest(key, nameOf(c.owner))
		}
		return errors.Join(errAgain, a.writeRefusal(ctx, p, c, *failed("IPAddress %s of %s %s has the name of this claim; "+
			"waiting until it is gone", nameOf(c.owner), obj.Spec.PoolRef.Kind, obj.Spec.PoolRef.Name)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeAddress(addr)
	if addr.claimUID == c.owner.UID {
		return nil
	}
	return errAgain
}

func ownersOf(c claim, poolObj v1alpha1.Pool) []metav1.OwnerReference {
	return []metav1.OwnerReference{{
		APIVersion: ipamv1.GroupVersion.String(), Kind: claimKind, Name: c.owner.Name, UID: c.owner.UID,
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}, poolOwner(c, poolObj)}
}

// poolOwner is the pool that a claim names, as an owner of its IPAddress: what a mirror mirrors owns the mirror.
func poolOwner(c claim, poolObj v1alpha1.Pool) metav1.OwnerReference {
	out := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: KeyOf(poolObj).Kind, Name: poolObj.GetName(), UID: poolObj.GetUID(),
	}
	if mirrored := metav1.GetControllerOf(poolObj); c.mirrored && mirrored != nil {
		out = *mirrored
	}
	out.Controller, out.BlockOwnerDeletion = ptr.To(false), ptr.To(true)
	return out
}

// repair gives an IPAddress that exists its owners and its finalizer again, by UID: clusterctl move
// and restores leave references to objects of another cluster.
func (a *Allocator) repair(ctx context.Context, p *pool, c claim, poolObj v1alpha1.Pool, addr *address) error {
	if addr.deleting || (addr.protected && addr.poolUID == poolOwner(c, poolObj).UID && addr.claimUID == c.owner.UID) {
		return nil
	}
	owners := ownersOf(c, poolObj)
	obj, err := a.patchAddress(ctx, *addr, map[string]any{
		"finalizers": append(slices.Clone(addr.others), AddressFinalizer), "ownerReferences": append(owners, addr.owners...),
	})
	if err != nil {
		return a.addressChanged(ctx, p, *addr, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeAddress(addressOf(obj))
	return nil
}

// fenced adds to the metadata of a patch which object it is for, in which state (R3).
func fenced(meta map[string]any, uid types.UID, rv string) map[string]any {
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"], meta["resourceVersion"] = uid, rv
	return meta
}

func (a *Allocator) patchAddress(ctx context.Context, addr address, meta map[string]any) (*ipamv1.IPAddress, error) {
	raw, err := json.Marshal(map[string]any{"metadata": fenced(meta, addr.uid, addr.rv)})
	if err != nil {
		return nil, err
	}
	obj := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: addr.namespace, Name: addr.name}}
	return obj, a.Client.Patch(ctx, obj, client.RawPatch(types.MergePatchType, raw))
}

// addressChanged reads an IPAddress live after a write of it was refused.
func (a *Allocator) addressChanged(ctx context.Context, p *pool, addr address, err error) error {
	metrics.WriteErrs.WithLabelValues("address").Inc()
	if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return err
	}
	live := &ipamv1.IPAddress{}
	getErr := a.Live.Get(ctx, addr.key(), live)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case apierrors.IsNotFound(getErr):
		p.forgetAddress(addr.uid, addr.key())
	case getErr != nil:
		return getErr
	default:
		if live.UID != addr.uid {
			p.forgetAddress(addr.uid, addr.key())
		}
		if key, ours := keyOfRef(live.Namespace, live.Spec.PoolRef); ours && key == p.key {
			p.observeAddress(addressOf(live))
		}
	}
	return errAgain
}

// bind writes the claim's status: the address, and Ready in both generations of conditions.
func (a *Allocator) bind(ctx context.Context, p *pool, c claim) error {
	tmp := c.withStatus()
	conditions.Set(tmp, metav1.Condition{
		Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionTrue, Reason: "Allocated",
	})
	v1beta1conditions.MarkTrue(tmp, clusterv1.ReadyV1Beta1Condition)
	first := !c.everBound
	next, err := a.patchClaim(ctx, c, nil, claimStatus(tmp, c.owner.Name))
	if err != nil {
		return a.writeFailed(ctx, p, c, "status", err)
	}
	if first {
		metrics.Fulfilment.Observe(a.now().Sub(c.created).Seconds())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeClaim(next)
	return nil
}

func claimStatus(tmp *ipamv1.IPAddressClaim, addressName string) map[string]any {
	status := map[string]any{
		"conditions": tmp.Status.Conditions,
		"deprecated": map[string]any{"v1beta1": map[string]any{"conditions": tmp.GetV1Beta1Conditions()}},
	}
	if addressName != "" {
		status["addressRef"] = map[string]any{"name": addressName}
	}
	return status
}

// refuse says on the claim why it gets no address, once. It is a job of its own.
func (a *Allocator) refuse(p *pool, c *claim, no refusal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.busy || p.jobs >= maxJobs || p.claims[c.owner.UID] != c {
		return
	}
	c.busy = true
	p.jobs++
	go a.runClaim(a.jobs, p, c.owner.UID, func(ctx context.Context, p *pool, c claim) error {
		ctx, cancel := timed(ctx)
		defer cancel()
		return a.writeRefusal(ctx, p, c, no)
	})
}

// writeRefusal writes a refusal into the status of a claim that does not say so yet.
func (a *Allocator) writeRefusal(ctx context.Context, p *pool, c claim, no refusal) error {
	if c.told() == no {
		return nil
	}
	var status map[string]any
	if c.block != nil {
		status = refusedBlock(c, no)
	} else {
		tmp := c.withStatus()
		conditions.Set(tmp, metav1.Condition{
			Type: ipamv1.IPAddressClaimReadyCondition, Status: metav1.ConditionFalse, Reason: no.reason, Message: no.message,
		})
		v1beta1conditions.MarkFalse(tmp, clusterv1.ReadyV1Beta1Condition, no.reason, clusterv1.ConditionSeverityWarning, "%s", no.message)
		status = claimStatus(tmp, "")
	}
	next, err := a.patchClaim(ctx, c, nil, status)
	if err != nil {
		return a.writeFailed(ctx, p, c, "refusal", err)
	}
	if c.block != nil {
		a.tellRefusal(next, no)
	}
	metrics.Refusals.WithLabelValues(p.key.Kind, p.key.Namespace, p.key.Name, no.reason).Inc()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observeClaim(next)
	return nil
}
