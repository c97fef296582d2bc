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
	// flagsPrefix begins the name of the ClusterCIDR that flags stand for, as the KEP has it. A hash of them follows.
	flagsPrefix = "created-from-flags-"
	// flagsHashBytes is how much of the hash the name has.
	flagsHashBytes = 4
	// flagsRefused is the reason of an event: the API server does not take what flags stand for.
	flagsRefused = "FlagsRefused"
)

// Flags have the cluster have one ClusterCIDR for the flags of the manager, and none for those of a manager before it. It
// is done by the holder, and once: two managers with different flags must not undo what the other does for ever.
type Flags struct {
	Client client.Client
	// Live reads what the API server has.
	Live     client.Reader
	Recorder events.EventRecorder
	// Spec is what the flags stand for.
	Spec v1alpha1.ClusterCIDRSpec
	Now  func() time.Time

	claimed, done bool
	// said is the last refusal, which is tried again after a pause.
	said  string
	pause time.Duration
	next  time.Time
}

// wants reports, once, whether the holder has to do something; all are the ClusterCIDRs that are known.
func (f *Flags) wants(all []v1alpha1.ClusterCIDR) bool {
	if f == nil || f.done || f.claimed {
		return false
	}
	missing, others := f.plan(all)
	f.done = missing == nil && len(others) == 0
	f.claimed = !f.done
	return f.claimed
}

// ensure does what is left to do, and returns when it is to be called again; 0: it need not be. The caller is the holder.
func (f *Flags) ensure(ctx context.Context) (time.Duration, error) {
	if f == nil || f.done {
		return 0, nil
	}
	if left := f.next.Sub(f.Now()); left > 0 {
		return left, nil
	}
	err := f.replace(ctx)
	if !term.RefusedForGood(err) {
		f.done = err == nil
		return 0, err
	}
	f.pause = term.NextPause(f.pause)
	f.next = f.Now().Add(f.pause)
	if f.said != err.Error() {
		f.said = err.Error()
		log.FromContext(ctx).Error(err, "The API server refuses what the flags stand for; it is tried again")
		o := &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: f.name(0)}}
		f.Recorder.Eventf(o, nil, corev1.EventTypeWarning, flagsRefused, "Create", "%s", err.Error())
	}
	return f.pause, nil
}

// replace creates the ClusterCIDR, and then deletes the others: while the API server refuses the new one, Nodes get what
// they got before.
func (f *Flags) replace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, term.RequestTimeout)
	defer cancel()
	var all v1alpha1.ClusterCIDRList
	if err := f.Live.List(ctx, &all); err != nil {
		return fmt.Errorf("listing ClusterCIDRs: %w", err)
	}
	missing, others := f.plan(all.Items)
	if missing != nil {
		if err := f.Client.Create(ctx, missing); err != nil {
			return fmt.Errorf("creating ClusterCIDR %s, which --cluster-cidr stands for: %w", missing.Name, err)
		}
		log.FromContext(ctx).Info("Created the ClusterCIDR that the flags stand for", "clusterCIDR", missing.Name)
	}
	var errs []error
	for i := range others {
		o := &others[i]
		err := exact.Delete(ctx, f.Client, o)
		if client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("deleting ClusterCIDR %s, which the flags of a manager before stood for: %w", o.Name, err))
			continue
		}
		log.FromContext(ctx).Info("Deleted a ClusterCIDR that other flags stood for; it goes when no Node uses it", "clusterCIDR", o.Name)
	}
	return errors.Join(errs...)
}

// plan returns the ClusterCIDR that is missing, nil if it is there, and those that other flags stood for.
func (f *Flags) plan(all []v1alpha1.ClusterCIDR) (missing *v1alpha1.ClusterCIDR, others []v1alpha1.ClusterCIDR) {
	there, names := false, map[string]bool{}
	for i := range all {
		c := all[i]
		names[c.Name] = true
		switch {
		case !strings.HasPrefix(c.Name, flagsPrefix) || !nodeipam.IsLocal(&c) || c.DeletionTimestamp != nil:
		case !there && equality.Semantic.DeepEqual(c.Spec, f.Spec):
			there = true
		default:
			others = append(others, c)
		}
	}
	if there {
		return nil, others
	}
	// One of that name may be on its way out still, as its Nodes are: flags that come back get another one.
	attempt := 0
	for names[f.name(attempt)] {
		attempt++
	}
	return &v1alpha1.ClusterCIDR{ObjectMeta: metav1.ObjectMeta{Name: f.name(attempt)}, Spec: f.Spec}, others
}

// name is that of the ClusterCIDR, the first one or, where that is taken, a later one.
func (f *Flags) name(attempt int) string {
	text, err := json.Marshal(f.Spec)
	if err != nil {
		panic(err) // a spec has only what can be written
	}
	sum := sha256.Sum256(fmt.Append(text, attempt))
	return flagsPrefix + hex.EncodeToString(sum[:flagsHashBytes])
}
