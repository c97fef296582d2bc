// Package pace delays writes that another writer reverts each time.
package pace

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// MinDelay is the minimum time before a write may be repeated that another writer has reverted before. Each further
// time, the delay of a status or an apply doubles, up to MaxDelay. The delay of other writes of an object stays at
// MinDelay, because they set the finalizers that protect what is in use.
const (
	MinDelay = time.Second
	MaxDelay = time.Minute
)

// maxRememberedWrites is the maximum number of writes of an object to remember: several controllers write an object,
// each of them several conditions.
const maxRememberedWrites = 8

// WritePacer delays a write of an object that was made a moment ago already. In that case another writer has reverted
// it: a manager that comes to another result, if two run without leader election, a webhook or another tool. Each
// write triggers the watch of the other writer, so without a delay both would write as fast as the API server
// responds. A write that is not reverted within its delay is never delayed.
type WritePacer struct {
	Clock clock.PassiveClock
	// MaxDelay bounds the delay of a write; 0 means the constant MaxDelay.
	MaxDelay time.Duration

	mu         sync.Mutex
	lastWrites map[writeTarget]map[uint64]*writeRecord
	lastSweep  time.Time
}

// writeTarget is what is written: an object, or its status.
type writeTarget struct {
	uid         types.UID
	subresource string
}

// writeRecord is a write of a target with a certain hash of its content: the time when it last succeeded, the delay
// before it may be repeated, whether a repetition was tried during that delay, and how many of these repetitions
// followed each other.
type writeRecord struct {
	writtenAt    time.Time
	delay        time.Duration
	retriedEarly bool
	repeats      int
}

// RepeatedWriteError is the error of a write that was not sent because it repeats an earlier one too soon.
type RepeatedWriteError struct {
	// RetryAfter is the time until the write may be sent.
	RetryAfter time.Duration
	object     string
}

// Error implements error.
func (e *RepeatedWriteError) Error() string {
	return fmt.Sprintf("another writer has reverted a write of %s: it is repeated in %s", e.object, e.RetryAfter.Round(time.Second))
}

// SplitDelayed separates delayed writes from the other errors of a reconcile. It returns the time until the first of
// the delayed writes may be sent, 0 if there is none, and the other errors.
func SplitDelayed(err error) (after time.Duration, rest error) {
	switch e := err.(type) { //nolint:errorlint // each wrapped error is checked
	case nil:
		return 0, nil
	case *RepeatedWriteError:
		return e.RetryAfter, nil
	case interface{ Unwrap() []error }:
		var others []error
		for _, part := range e.Unwrap() {
			wait, other := SplitDelayed(part)
			if wait > 0 && (after == 0 || wait < after) {
				after = wait
			}
			others = append(others, other)
		}
		return after, errors.Join(others...)
	case interface{ Unwrap() error }:
		if after, rest = SplitDelayed(e.Unwrap()); rest == nil {
			return after, nil
		}
		return after, err
	}
	return 0, err
}

// WrapClient returns a client that delays writes: patches, applies and updates of objects and of their status, and
// creations. A nil WritePacer delays nothing.
func (w *WritePacer) WrapClient(c client.Client) client.Client {
	if w == nil {
		return c
	}
	return pacedClient{Client: c, pacer: w}
}

type pacedClient struct {
	client.Client

	pacer *WritePacer
}

func (c pacedClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if o.GetName() == "" {
		return c.Client.Create(ctx, o, opts...) // the API server gives each object another name
	}
	// The object has no UID yet, so its description identifies it.
	of := writeTarget{types.UID(objectDescription(o)), "creation"}
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", objectDescription(o), err)
	}
	return c.pacer.sendWrite(ctx, o, of, MaxDelay, data, func() error { return c.Client.Create(ctx, o, opts...) })
}

func (c pacedClient) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.pacer.sendPatch(ctx, o, writeTarget{o.GetUID(), ""}, MinDelay, patch, func(patch client.Patch) error { return c.Client.Patch(ctx, o, patch, opts...) })
}

func (c pacedClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return c.pacer.sendUpdate(ctx, o, writeTarget{o.GetUID(), ""}, MinDelay, func() error { return c.Client.Update(ctx, o, opts...) })
}

func (c pacedClient) Apply(ctx context.Context, applied runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	send := func() error { return c.Client.Apply(ctx, applied, opts...) }
	o, ok := applied.(metav1.Object)
	if !ok {
		return send() // unknown object
	}
	data, err := json.Marshal(applied)
	if err != nil {
		return fmt.Errorf("encoding what is applied to %s: %w", objectDescription(o), err)
	}
	return c.pacer.sendWrite(ctx, o, writeTarget{o.GetUID(), ""}, MaxDelay, data, send)
}

func (c pacedClient) Status() client.SubResourceWriter {
	return pacedStatusWriter{SubResourceWriter: c.Client.Status(), pacer: c.pacer}
}

type pacedStatusWriter struct {
	client.SubResourceWriter

	pacer *WritePacer
}

func (c pacedStatusWriter) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return c.pacer.sendPatch(ctx, o, writeTarget{o.GetUID(), "status"}, MaxDelay, patch, func(patch client.Patch) error { return c.SubResourceWriter.Patch(ctx, o, patch, opts...) })
}

func (c pacedStatusWriter) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	return c.pacer.sendUpdate(ctx, o, writeTarget{o.GetUID(), "status"}, MaxDelay, func() error { return c.SubResourceWriter.Update(ctx, o, opts...) })
}

func (w *WritePacer) sendPatch(ctx context.Context, o client.Object, of writeTarget, most time.Duration, patch client.Patch, send func(client.Patch) error) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	// The computed patch is sent: a large patch takes long to compute, so it is computed once.
	return w.sendWrite(ctx, o, of, most, data, func() error { return send(client.RawPatch(patch.Type(), data)) })
}

func (w *WritePacer) sendUpdate(ctx context.Context, o client.Object, of writeTarget, most time.Duration, send func() error) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", objectDescription(o), err)
	}
	return w.sendWrite(ctx, o, of, most, data, send)
}

// sendWrite sends a write, unless it repeats an earlier one too soon. A failed write does not count: its response may
// be lost, or the queue of the controller delays it. Nor does a write that changes nothing.
func (w *WritePacer) sendWrite(ctx context.Context, o metav1.Object, of writeTarget, most time.Duration, data []byte, send func() error) error {
	version := o.GetResourceVersion()
	if of.uid == "" {
		return send()
	}
	content, err := hashContent(data)
	if err != nil {
		return fmt.Errorf("decoding what is written of %s: %w", objectDescription(o), err)
	}
	if after := w.remainingDelay(of, content); after > 0 {
		return &RepeatedWriteError{RetryAfter: after, object: objectDescription(o)}
	}
	if err := send(); err != nil {
		return err
	}
	if o.GetResourceVersion() == version {
		return nil
	}
	if repeats := w.recordWrite(of, content, most); repeats&(repeats-1) == 0 && repeats > 1 { // 2, 4, 8, ...
		log.FromContext(ctx).Info("Another writer reverts what this manager writes, which is written again less and less often; see whether two managers "+
			"run without leader election, or another tool manages the object", "object", objectDescription(o), "subresource", of.subresource, "times", repeats)
	}
	return nil
}

// objectDescription returns the kind of an object with its namespace and name.
func objectDescription(o metav1.Object) string {
	kind := ""
	if typed, ok := o.(runtime.Object); ok {
		kind = typed.GetObjectKind().GroupVersionKind().Kind
	}
	if kind == "" {
		kind = strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	}
	return kind + " " + strings.TrimPrefix(types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}.String(), "/")
}

// remainingDelay returns the time until a target may be written with this content, 0 if it may be written now.
func (w *WritePacer) remainingDelay(of writeTarget, content uint64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.lastWrites[of][content]
	if last == nil {
		return 0
	}
	left := last.writtenAt.Add(last.delay).Sub(w.Clock.Now())
	if left <= 0 {
		return 0
	}
	last.retriedEarly = true
	return left
}

// recordWrite records a write, and returns how many early repetitions followed each other. A write that stayed in
// place for its delay starts at 0 again.
func (w *WritePacer) recordWrite(of writeTarget, content uint64, most time.Duration) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Clock.Now()
	w.forgetOldWrites(now)
	next := &writeRecord{writtenAt: now, delay: MinDelay}
	if last := w.lastWrites[of][content]; last != nil && last.retriedEarly {
		next.delay, next.repeats = min(2*last.delay, most, cmp.Or(w.MaxDelay, MaxDelay)), last.repeats+1
	}
	if w.lastWrites == nil {
		w.lastWrites = map[writeTarget]map[uint64]*writeRecord{}
	}
	all := w.lastWrites[of]
	if all == nil {
		all = map[uint64]*writeRecord{}
		w.lastWrites[of] = all
	}
	all[content] = next
	if len(all) > maxRememberedWrites {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b uint64) int { return all[a].writtenAt.Compare(all[b].writtenAt) })
		delete(all, oldest)
	}
	return next.repeats
}

// forgetOldWrites removes, once in a while, records of writes that are long past.
func (w *WritePacer) forgetOldWrites(now time.Time) {
	if now.Sub(w.lastSweep) < MaxDelay {
		return
	}
	w.lastSweep = now
	maps.DeleteFunc(w.lastWrites, func(_ writeTarget, all map[uint64]*writeRecord) bool {
		maps.DeleteFunc(all, func(_ uint64, last *writeRecord) bool { return now.Sub(last.writtenAt) > 2*MaxDelay })
		return len(all) == 0
	})
}

// hashContent hashes what a write sets. It leaves out from which version the write was computed, the times of
// changes, and the mark of a Cluster's entry: of two writes that differ in nothing else, one repeats the other.
func hashContent(data []byte) (uint64, error) {
	var content any
	if err := json.Unmarshal(data, &content); err != nil {
		return 0, err
	}
	removeVersionFields(content)
	data, err := json.Marshal(content) // its keys are sorted
	if err != nil {
		return 0, err
	}
	hash := fnv.New64a()
	_, _ = hash.Write(data) // never fails
	return hash.Sum64(), nil
}

func removeVersionFields(content any) {
	switch v := content.(type) {
	case map[string]any:
		for _, name := range []string{"resourceVersion", "managedFields", "lastTransitionTime", "lastValidationTime", "mark"} {
			delete(v, name)
		}
		for _, part := range v {
			removeVersionFields(part)
		}
	case []any:
		for _, part := range v {
			removeVersionFields(part)
		}
	}
}
