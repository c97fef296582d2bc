package faults

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"maps"
	"slices"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Server is the API server. Clients call it at any time; when all clients wait, the test decides what happens. The
// zero value is not usable.
type Server struct {
	mu      sync.Mutex
	store   store
	pending []*Request
	round   int
	// callHash hashes the taken requests in their order.
	callHash hash.Hash
}

// NewServer returns a server without objects.
func NewServer() *Server {
	return &Server{store: store{objects: map[Ref]client.Object{}, changes: map[Kind][]Change{}}, callHash: sha256.New()}
}

// Request is a call that waits for its answer.
type Request struct {
	// Server is the server that is called.
	Server *Server
	// Client is the name of the client that calls.
	Client string
	// Verb is get, list, create, update, patch or delete.
	Verb string
	Ref  Ref
	// Status reports whether the call is for the status subresource.
	Status bool

	round     int
	execute   func(*store) (any, error)
	replies   chan reply
	abandoned <-chan struct{}
}

type reply struct {
	value any
	err   error
}

// IsAbandoned reports whether the client has stopped waiting. A request that was not taken by then is never sent.
func (r *Request) IsAbandoned() bool {
	select {
	case <-r.abandoned:
		return true
	default:
		return false
	}
}

// IsWrite reports whether the call may change something.
func (r *Request) IsWrite() bool { return r.Verb != "get" && r.Verb != "list" }

// String describes the call.
func (r *Request) String() string {
	what := string(r.Ref.Kind)
	if r.Status {
		what += "/status"
	}
	return fmt.Sprintf("%s: %s %s %s", r.Client, r.Verb, what, r.Ref.Name)
}

// Answer sends the client the outcome of its call.
func (r *Request) Answer(value any, err error) { r.replies <- reply{value, err} }

// callServer waits for the answer to a call, or for the end of ctx. The call stays pending after that: it may have
// been sent already.
func callServer[T any](ctx context.Context, c *Client, r *Request) (T, error) {
	r.abandoned = ctx.Done()
	s := c.server
	r.Server, r.Client, r.replies = s, c.name, make(chan reply, 1)
	s.mu.Lock()
	r.round = s.round
	s.pending = append(s.pending, r)
	s.mu.Unlock()
	var none T
	select {
	case got := <-r.replies:
		if value, ok := got.value.(T); ok && got.err == nil {
			return value, nil
		}
		return none, got.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// PendingRequests returns the calls without an answer, in an order that does not depend on the scheduler of
// goroutines: first by the round in which they arrived, then by client, object and verb. It begins a new round.
func (s *Server) PendingRequests() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	slices.SortStableFunc(s.pending, func(a, b *Request) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.Client, b.Client), compareRefs(a.Ref, b.Ref), cmp.Compare(a.Verb, b.Verb))
	})
	return slices.Clone(s.pending)
}

// TakeRequest removes a call from the pending ones: the test decides its outcome.
func (s *Server) TakeRequest(r *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.DeleteFunc(s.pending, func(other *Request) bool { return other == r })
	fmt.Fprintln(s.callHash, r, r.Ref.Namespace)
}

// Digest returns a hash of all taken calls, in their order, and of all that was written: every version of every
// object, without the text of messages.
func (s *Server) Digest() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := sha256.New()
	all.Write(s.callHash.Sum(nil))
	for _, kind := range slices.Sorted(maps.Keys(s.store.changes)) {
		for _, c := range s.store.changes[kind] {
			var o map[string]any
			decodeJSON(encodeJSON(c.Object), &o)
			dropMessages(o)
			fmt.Fprintf(all, "%v %s\n", c.Deleted, encodeJSON(o))
		}
	}
	return all.Sum(nil)
}

// dropMessages removes the messages of conditions from decoded JSON.
func dropMessages(in any) {
	switch in := in.(type) {
	case map[string]any:
		delete(in, "message")
		for _, v := range in {
			dropMessages(v)
		}
	case []any:
		for _, v := range in {
			dropMessages(v)
		}
	}
}

// ExecuteRequest executes a call and returns the answer that the client would get.
func (s *Server) ExecuteRequest(r *Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.execute(&s.store)
}

// ChangesSince returns the changes of a kind after the first n, as a watch shows them.
func (s *Server) ChangesSince(kind Kind, n int) []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.changes[kind][n:]
}

// ResourceVersion returns the resource version of the newest change.
func (s *Server) ResourceVersion() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.version
}

// List returns the objects of a kind in all namespaces, ordered by namespace and name. Callers must not change them.
func (s *Server) List(kind Kind) []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.listShared(kind, "")
}

// Create creates an object at once, as a user outside of the schedule.
func (s *Server) Create(o client.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.store.create(o)
	return err
}

// EditObject changes an object at once, as a user outside of the schedule.
func (s *Server) EditObject(ref Ref, change func(client.Object)) error {
	return s.editObject(ref, change, false)
}

func (s *Server) editObject(ref Ref, change func(client.Object), status bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.store.get(ref)
	if err != nil {
		return err
	}
	change(o)
	_, err = s.store.update(o, status)
	return err
}

// EditStatus changes the status of an object at once, as a user outside of the schedule.
func (s *Server) EditStatus(ref Ref, change func(client.Object)) error {
	return s.editObject(ref, change, true)
}

// SetMutatingWebhook sets a mutating webhook that changes the metadata of every object that is written from now on,
// except objects that are being deleted; nil removes it.
func (s *Server) SetMutatingWebhook(webhook func(client.Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.webhook = webhook
}

// Delete deletes an object at once, as a user outside of the schedule. With force it removes the finalizers, so that
// the object is gone.
func (s *Server) Delete(ref Ref, force bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.store.delete(ref, "", "")
	if err != nil || !force || len(o.GetFinalizers()) == 0 {
		return err
	}
	o.SetFinalizers(nil)
	_, err = s.store.update(o, false)
	return err
}

func compareRefs(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
