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

// Least is how long after a write the same one may be repeated at the earliest, where another writer has reverted it before. Each
// time that happens again, a status and what is applied wait twice as long, up to Most. Other writes of an object wait no longer
// than Least: they set the finalizers that keep what is in use.
const (
	Least = time.Second
	Most  = time.Minute
)

// mostContents is how many writes of an object are remembered: several controllers write it, and each several conditions.
const mostContents = 8

// Writes delays a write of an object that was made before, a moment ago. Then another writer has reverted it: a manager that finds
// something else, where two run without leader election, a webhook or another tool. Each shows its write to the other's watch,
// so without a delay both would write as fast as the API server answers. A write that is not reverted within its delay is never delayed.
type Writes struct {
	Clock clock.PassiveClock
	// Max bounds how long a write is delayed; 0: Most.
	Max time.Duration

	mu    sync.Mutex
	last  map[target]map[uint64]*write
	swept time.Time
}

// target is what is written: an object, or its status.
type target struct {
	uid         types.UID
	subresource string
}

// write is a write of a target, by the hash of its content: when it last succeeded, how long it may not be repeated since then,
// whether that was tried earlier, and how often it was repeated in a row after that.
type write struct {
	at      time.Time
	delay   time.Duration
	early   bool
	repeats int
}

// RepeatedError is the error of a write that was not sent, since it repeats an earlier one too soon.
type RepeatedError struct {
	// After is how long until it may be sent.
	After  time.Duration
	object string
}

func (e *RepeatedError) Error() string {
	return fmt.Sprintf("another writer has reverted what was written of %s: it is written again in %s", e.object, e.After.Round(time.Second))
}

// Split separates the writes that are delayed from the other errors of a reconcile. It returns how long until the first of
// those may be sent, 0 if there is none, and the others.
func Split(err error) (after time.Duration, rest error) {
	switch e := err.(type) { //nolint:errorlint // each error that is wrapped is looked at
	case nil:
		return 0, nil
	case *RepeatedError:
		return e.After, nil
	case interface{ Unwrap() []error }:
		var others []error
		for _, part := range e.Unwrap() {
			wait, other := Split(part)
			if wait > 0 && (after == 0 || wait < after) {
				after = wait
			}
			others = append(others, other)
		}
		return after, errors.Join(others...)
	case interface{ Unwrap() error }:
		if after, rest = Split(e.Unwrap()); rest == nil {
			return after, nil
		}
		return after, err
	}
	return 0, err
}

// Client returns a client whose writes are delayed: patches, applies and updates of objects and of their status, and creations. A nil
// Writes delays none.
func (w *Writes) Client(c client.Client) client.Client {
	if w == nil {
		return c
	}
	return pacedClient{Client: c, writes: w}
}

type pacedClient struct {
	client.Client

	writes *Writes
}

func (c pacedClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if o.GetName() == "" {
		return c.Client.Create(ctx, o, opts...) // the API server gives each another name
	}
	// It has no UID yet: who has the name is what is written.
	of := target{types.UID(nameOf(o)), "creation"}
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", nameOf(o), err)
	}
	return c.writes.send(ctx, o, of, Most, data, func() error { return c.Client.Create(ctx, o, opts...) })
}

func (c pacedClient) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.writes.patch(ctx, o, target{o.GetUID(), ""}, Least, patch, func(patch client.Patch) error { return c.Client.Patch(ctx, o, patch, opts...) })
}

func (c pacedClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return c.writes.update(ctx, o, target{o.GetUID(), ""}, Least, func() error { return c.Client.Update(ctx, o, opts...) })
}

func (c pacedClient) Apply(ctx context.Context, applied runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	send := func() error { return c.Client.Apply(ctx, applied, opts...) }
	o, is := applied.(metav1.Object)
	if !is {
		return send() // it does not say which object it is
	}
	data, err := json.Marshal(applied)
	if err != nil {
		return fmt.Errorf("encoding what is applied to %s: %w", nameOf(o), err)
	}
	return c.writes.send(ctx, o, target{o.GetUID(), ""}, Most, data, send)
}

func (c pacedClient) Status() client.SubResourceWriter {
	return pacedStatus{SubResourceWriter: c.Client.Status(), writes: c.writes}
}

type pacedStatus struct {
	client.SubResourceWriter

	writes *Writes
}

func (c pacedStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return c.writes.patch(ctx, o, target{o.GetUID(), "status"}, Most, patch, func(patch client.Patch) error { return c.SubResourceWriter.Patch(ctx, o, patch, opts...) })
}

func (c pacedStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	return c.writes.update(ctx, o, target{o.GetUID(), "status"}, Most, func() error { return c.SubResourceWriter.Update(ctx, o, opts...) })
}

func (w *Writes) patch(ctx context.Context, o client.Object, of target, most time.Duration, patch client.Patch, send func(client.Patch) error) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	// What was computed is sent: a patch may be computed from an object once only, as a large one takes long.
	return w.send(ctx, o, of, most, data, func() error { return send(client.RawPatch(patch.Type(), data)) })
}

func (w *Writes) update(ctx context.Context, o client.Object, of target, most time.Duration, send func() error) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding %s: %w", nameOf(o), err)
	}
	return w.send(ctx, o, of, most, data, send)
}

// send sends a write, unless it repeats an earlier one too soon. One that fails does not count: its answer may be lost, or the queue
// of the controller delays it. Nor does one that changes nothing.
func (w *Writes) send(ctx context.Context, o metav1.Object, of target, most time.Duration, data []byte, send func() error) error {
	version := o.GetResourceVersion()
	if of.uid == "" {
		return send()
	}
	content, err := contentOf(data)
	if err != nil {
		return fmt.Errorf("decoding what is written of %s: %w", nameOf(o), err)
	}
	if after := w.after(of, content); after > 0 {
		return &RepeatedError{After: after, object: nameOf(o)}
	}
	if err := send(); err != nil {
		return err
	}
	if o.GetResourceVersion() == version {
		return nil
	}
	if repeats := w.sent(of, content, most); repeats&(repeats-1) == 0 && repeats > 1 { // 2, 4, 8, ...
		log.FromContext(ctx).Info("Another writer reverts what this manager writes, which is written again less and less often; see whether two managers "+
			"run without leader election, or another tool manages the object", "object", nameOf(o), "subresource", of.subresource, "times", repeats)
	}
	return nil
}

// nameOf is the kind of an object, with its namespace and name.
func nameOf(o metav1.Object) string {
	kind := ""
	if typed, is := o.(runtime.Object); is {
		kind = typed.GetObjectKind().GroupVersionKind().Kind
	}
	if kind == "" {
		kind = strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	}
	return kind + " " + strings.TrimPrefix(types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}.String(), "/")
}

// after returns how long until a target may be written; 0: now.
func (w *Writes) after(of target, content uint64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.last[of][content]
	if last == nil {
		return 0
	}
	left := last.at.Add(last.delay).Sub(w.Clock.Now())
	if left <= 0 {
		return 0
	}
	last.early = true
	return left
}

// sent notes a write, and returns how often it was repeated early in a row. One that was in place for its delay begins anew.
func (w *Writes) sent(of target, content uint64, most time.Duration) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Clock.Now()
	w.sweep(now)
	next := &write{at: now, delay: Least}
	if last := w.last[of][content]; last != nil && last.early {
		next.delay, next.repeats = min(2*last.delay, most, cmp.Or(w.Max, Most)), last.repeats+1
	}
	if w.last == nil {
		w.last = map[target]map[uint64]*write{}
	}
	all := w.last[of]
	if all == nil {
		all = map[uint64]*write{}
		w.last[of] = all
	}
	all[content] = next
	if len(all) > mostContents {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(all)), func(a, b uint64) int { return all[a].at.Compare(all[b].at) })
		delete(all, oldest)
	}
	return next.repeats
}

// sweep forgets, now and then, what was written long ago.
func (w *Writes) sweep(now time.Time) {
	if now.Sub(w.swept) < Most {
		return
	}
	w.swept = now
	maps.DeleteFunc(w.last, func(_ target, all map[uint64]*write) bool {
		maps.DeleteFunc(all, func(_ uint64, last *write) bool { return now.Sub(last.at) > 2*Most })
		return len(all) == 0
	})
}

// contentOf hashes what a write sets. What says which version it was made from, when something changed or by which mark a Cluster
// entered it is left out: of two writes that differ in nothing else, one repeats the other.
func contentOf(data []byte) (uint64, error) {
	var content any
	if err := json.Unmarshal(data, &content); err != nil {
		return 0, err
	}
	dropVersions(content)
	data, err := json.Marshal(content) // its keys are sorted
	if err != nil {
		return 0, err
	}
	hash := fnv.New64a()
	_, _ = hash.Write(data) // never fails
	return hash.Sum64(), nil
}

func dropVersions(content any) {
	switch v := content.(type) {
	case map[string]any:
		for _, name := range []string{"resourceVersion", "managedFields", "lastTransitionTime", "lastValidationTime", "mark"} {
			delete(v, name)
		}
		for _, part := range v {
			dropVersions(part)
		}
	case []any:
		for _, part := range v {
			dropVersions(part)
		}
	}
}
