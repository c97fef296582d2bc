package nodecidr

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/exact"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/nodeipam"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

const (
	// flagsNamePrefix is the prefix of the name of the ClusterCIDR that is created from flags, as in the KEP. A hash of
	// the flags follows.
	flagsNamePrefix = "created-from-flags-"
	// flagsHashBytes is how many bytes of the hash the name has.
	flagsHashBytes = 4
	// flagsRefusedReason is the reason of the event that the API server refuses the ClusterCIDR of the flags.
	flagsRefusedReason = "FlagsRefused"
)

// FlagsReconciler ensures that the cluster has one ClusterCIDR for the flags of the manager, and none for those of an
// earlier manager. The holder does so, once: two managers with different flags must not undo each other's work forever.
type FlagsReconciler struct {
	Client client.Client
	// Live reads the current state of the API server.
	Live     client.Reader
	Recorder events.EventRecorder
	// ClusterCIDRSpec is the spec that corresponds to the flags.
	ClusterCIDRSpec v1alpha1.ClusterCIDRSpec
	Now             func() time.Time

	takeoverRequested, done bool
	// lastRefusal is the last refusal; the request is retried after a pause.
	lastRefusal string
	retryPause  time.Duration
	nextRetryAt time.Time
}

// needsHolder reports, once, whether the holder has something to do; all are the known ClusterCIDRs.
func (f *FlagsReconciler) needsHolder(all []v1alpha1.ClusterCIDR) bool {
	if f == nil || f.done || f.takeoverRequested {
		return false
	}
	missing, others := f.diffClusterCIDRs(all)
	f.done = missing == nil && len(others) == 0
	f.takeoverRequested = !f.done
	return f.takeoverRequested
}

// ensureClusterCIDR does the remaining work, and returns after how long it has to be called again; 0 means never. The
// caller must be the holder.
func (f *FlagsReconciler) ensureClusterCIDR(ctx context.Context) (time.Duration, error) {
	if f == nil || f.done {
		return 0, nil
	}
	if left := f.nextRetryAt.Sub(f.Now()); left > 0 {
		return left, nil
	}
	err := f.replaceClusterCIDRs(ctx)
	if !term.IsPermanentRefusal(err) {
		f.done = err == nil
		return 0, err
	}
	f.retryPause = term.NextRetryPause(f.retryPause)
	f.nextRetryAt = f.Now().Add(f.retryPause)
	if f.lastRefusal != err.Error() {
		f.lastRefusal = err.Error()
		log.FromContext(ctx).Error(err, "API server rejected the ClusterCIDR generated from flags; retrying")
		o := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: f.clusterCIDRName(0)}}
		f.Recorder.Eventf(o, nil, corev1.EventTypeWarning, flagsRefusedReason, "Create", "%s", err.Error())
	}
	return f.retryPause, nil
}

// replaceClusterCIDRs creates the ClusterCIDR of the flags, and then deletes the others: while the API server refuses
// the new one, Nodes get CIDRs as before.
func (f *FlagsReconciler) replaceClusterCIDRs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	var all v1alpha1.ClusterCIDRList
	if err := f.Live.List(ctx, &all); err != nil {
		return fmt.Errorf("listing ClusterCIDRs: %w", err)
	}
	missing, others := f.diffClusterCIDRs(all.Items)
	if missing != nil {
		if err := f.Client.Create(ctx, missing); err != nil {
			return fmt.Errorf("creating ClusterCIDR %s for --cluster-cidr: %w", missing.Name, err)
		}
		log.FromContext(ctx).Info("Created the ClusterCIDR of the flags", "clusterCIDR", missing.Name)
	}
	var errs []error
	for i := range others {
		o := &others[i]
		err := exact.DeleteWithPreconditions(ctx, f.Client, o)
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("deleting ClusterCIDR %s, which the flags of a manager before stood for: %w", o.Name, err))
			continue
		}
		log.FromContext(ctx).Info("Deleted a ClusterCIDR of other flags; it remains until no Node uses it", "clusterCIDR", o.Name)
	}
	return errors.Join(errs...)
}

// diffClusterCIDRs returns the ClusterCIDR that is missing, nil if it exists, and those that were created from other
// flags.
func (f *FlagsReconciler) diffClusterCIDRs(all []v1alpha1.ClusterCIDR) (missing *v1alpha1.ClusterCIDR, others []v1alpha1.ClusterCIDR) {
	there, names := false, map[string]bool{}
	for i := range all {
		c := all[i]
		names[c.Name] = true
		switch {
		case !strings.HasPrefix(c.Name, flagsNamePrefix) || !nodeipam.IsLocal(&c) || c.DeletionTimestamp != nil:
		case !there && equality.Semantic.DeepEqual(c.Spec, f.ClusterCIDRSpec):
			there = true
		default:
			others = append(others, c)
		}
	}
	if there {
		return nil, others
	}
	// One of that name may still be in deletion, as its Nodes exist: flags that are used again get another one.
	attempt := 0
	for names[f.clusterCIDRName(attempt)] {
		attempt++
	}
	return &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: f.clusterCIDRName(attempt)}, Spec: f.ClusterCIDRSpec}, others
}

// clusterCIDRName returns the name of the ClusterCIDR; attempt is 0 or, where earlier names are taken, larger.
func (f *FlagsReconciler) clusterCIDRName(attempt int) string {
	text, err := json.Marshal(f.ClusterCIDRSpec)
	if err != nil {
		panic(err) // a spec only has values that can be encoded
	}
	sum := sha256.Sum256(fmt.Append(text, attempt))
	return flagsNamePrefix + hex.EncodeToString(sum[:flagsHashBytes])
}
