// Package pace delays writes that another writer reverts each time.
package pace

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// Least and Most bound how long after a write the same one may be made again. The time doubles each time.
const (
	Least = time.Second
	Most  = time.Minute
)

// Writes delays a write that repeats the last one of the same object. Then another writer has reverted it: a manager that finds
// something else, where two run without leader election, or a webhook. Each shows its write to the other's watch, so without
// a delay both would write as fast as the API server answers.
type Writes struct {
	Clock clock.PassiveClock

	mu    sync.Mutex
	last  map[target]write
	swept time.Time
}

// target is what is written: an object, or its status.
type target struct {
	uid         types.UID
	subresource string
}

// write is the last write of a target: the hash of its content, when it succeeded, and how long it may not be repeated.
type write struct {
	content uint64
	at      time.Time
	delay   time.Duration
}

// RepeatedError is the error of a write that was not sent, since it repeats the last one too early.
type RepeatedError struct {
	// After is how long until it may be sent.
	After  time.Duration
	object string
}

func (e *RepeatedError) Error() string {
	return fmt.Sprintf("another writer has reverted the last write of %s: it is repeated in %s", e.object, e.After)
}

// Split separates the writes that are delayed from the other errors of a reconcile. It returns how long until the first of
// those may be sent, 0 if there is none, and the others.
func Split(err error) (after time.Duration, rest error) {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		var others []error
		for _, part := range joined.Unwrap() {
			wait, other := Split(part)
			if wait > 0 && (after == 0 || wait < after) {
				after = wait
			}
			others = append(others, other)
		}
		return after, errors.Join(others...)
	}
	repeated := (*RepeatedError)(nil)
	if errors.As(err, &repeated) {
		return repeated.After, nil
	}
	return 0, err
}

// Client returns a client whose patches, applies and updates of objects and of their status are delayed where they repeat the last one. A
// nil Writes delays none.
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

func (c pacedClient) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	return c.writes.patch(ctx, o, "", patch, func(patch client.Patch) error { return c.Client.Patch(ctx, o, patch, opts...) })
}

func (c pacedClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return c.writes.update(ctx, o, "", func() error { return c.Client.Update(ctx, o, opts...) })
}

func (c pacedClient) Apply(ctx context.Context, applied runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	send := func() error { return c.Client.Apply(ctx, applied, opts...) }
	o, is := applied.(metav1.Object)
	if !is {
		return send() // it does not say which object it is
	}
	data, err := json.Marshal(applied)
	if err != nil {
		return fmt.Errorf("encoding what is applied to %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	return c.writes.send(ctx, o, "", data, send)
}

func (c pacedClient) Status() client.SubResourceWriter {
	return pacedStatus{SubResourceWriter: c.Client.Status(), writes: c.writes}
}

type pacedStatus struct {
	client.SubResourceWriter

	writes *Writes
}

func (c pacedStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	return c.writes.patch(ctx, o, "status", patch, func(patch client.Patch) error { return c.SubResourceWriter.Patch(ctx, o, patch, opts...) })
}

func (c pacedStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	return c.writes.update(ctx, o, "status", func() error { return c.SubResourceWriter.Update(ctx, o, opts...) })
}

func (w *Writes) patch(ctx context.Context, o client.Object, subresource string, patch client.Patch, send func(client.Patch) error) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	// What was computed is sent: a patch may be computed from an object once only, as a large one takes long.
	return w.send(ctx, o, subresource, data, func() error { return send(client.RawPatch(patch.Type(), data)) })
}

func (w *Writes) update(ctx context.Context, o client.Object, subresource string, send func() error) error {
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encoding %T %s: %w", o, client.ObjectKeyFromObject(o), err)
	}
	return w.send(ctx, o, subresource, data, send)
}

// send sends a write, unless it repeats the last one too early. One that fails is not the last: its answer may be lost, or the
// queue of the controller delays it. Nor is one that changes nothing.
func (w *Writes) send(ctx context.Context, o metav1.Object, subresource string, data []byte, send func() error) error {
	of, version := target{o.GetUID(), subresource}, o.GetResourceVersion()
	if of.uid == "" {
		return send()
	}
	content, err := contentOf(data)
	if err != nil {
		return fmt.Errorf("decoding what is written of %s/%s: %w", o.GetNamespace(), o.GetName(), err)
	}
	if after := w.after(of, content); after > 0 {
		return &RepeatedError{After: after, object: fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())}
	}
	if err := send(); err != nil {
		return err
	}
	if o.GetResourceVersion() == version {
		return nil
	}
	if delay := w.sent(of, content); delay > Least {
		log.FromContext(ctx).Info("Repeated a write that another writer had reverted; see whether two managers run without leader election",
			"object", fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName()), "subresource", subresource, "notAgainFor", delay.String())
	}
	return nil
}

// after returns how long until a target may be written; 0: now.
func (w *Writes) after(of target, content uint64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, is := w.last[of]
	if !is || last.content != content {
		return 0
	}
	return max(0, last.at.Add(last.delay).Sub(w.Clock.Now()))
}

// sent notes a write, and returns how long it may not be repeated. One that comes long after the last one begins anew.
func (w *Writes) sent(of target, content uint64) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Clock.Now()
	old := func(last write) bool { return now.Sub(last.at) > 2*Most }
	if now.Sub(w.swept) > Most {
		maps.DeleteFunc(w.last, func(_ target, last write) bool { return old(last) })
		w.swept = now
	}
	delay := Least
	if last, is := w.last[of]; is && last.content == content && !old(last) {
		delay = min(2*last.delay, Most)
	}
	if w.last == nil {
		w.last = map[target]write{}
	}
	w.last[of] = write{content, now, delay}
	return delay
}

// contentOf hashes what a write sets. What says which version it was made from, or when something changed, is left out: of
// two writes that differ in nothing else, one repeats the other.
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
		for _, name := range []string{"resourceVersion", "managedFields", "lastTransitionTime", "lastValidationTime"} {
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
