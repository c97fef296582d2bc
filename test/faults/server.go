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

// Server is the API server. Clients call it at any time; the test, when all clients wait, decides
// what happens. The zero value is not usable.
type Server struct {
	mu      sync.Mutex
	store   store
	waiting []*Request
	round   int
	// calls are those that have left, one after the other.
	calls hash.Hash
}

// New returns a server without objects.
func New() *Server {
	return &Server{store: store{objects: map[Ref]client.Object{}, log: map[Kind][]Change{}}, calls: sha256.New()}
}

// Request is a call that waits for its answer.
type Request struct {
	// Client is the name of the client that calls.
	Client string
	// Verb is get, list, create, update, patch or delete.
	Verb string
	Ref  Ref
	// Status: the call is for the status.
	Status bool

	round int
	do    func(*store) (any, error)
	reply chan reply
	over  <-chan struct{}
}

type reply struct {
	value any
	err   error
}

// GivenUp reports whether the client waits no more: what it had not sent by then it does not send.
func (r *Request) GivenUp() bool {
	select {
	case <-r.over:
		return true
	default:
		return false
	}
}

// Write reports whether the call changes something.
func (r *Request) Write() bool { return r.Verb != "get" && r.Verb != "list" }

// String describes the call.
func (r *Request) String() string {
	what := string(r.Ref.Kind)
	if r.Status {
		what += "/status"
	}
	return fmt.Sprintf("%s: %s %s %s", r.Client, r.Verb, what, r.Ref.Name)
}

// Answer tells the client what became of its call.
func (r *Request) Answer(value any, err error) { r.reply <- reply{value, err} }

// ask waits for the answer to a call, or for the end of the client's patience. The call waits on: it
// may have left already.
func ask[T any](ctx context.Context, c *Client, r *Request) (T, error) {
	r.over = ctx.Done()
	s := c.server
	r.Client, r.reply = c.name, make(chan reply, 1)
	s.mu.Lock()
	r.round = s.round
	s.waiting = append(s.waiting, r)
	s.mu.Unlock()
	var none T
	select {
	case got := <-r.reply:
		if value, ok := got.value.(T); ok && got.err == nil {
			return value, nil
		}
		return none, got.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// Waiting returns the calls without an answer, in an order that does not depend on the scheduler of
// goroutines: first what came in an earlier round, then by what they are. It begins a new round.
func (s *Server) Waiting() []*Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	slices.SortStableFunc(s.waiting, func(a, b *Request) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.Client, b.Client), compare(a.Ref, b.Ref), cmp.Compare(a.Verb, b.Verb))
	})
	return slices.Clone(s.waiting)
}

// Take ends the wait of a call: the test decides what becomes of it.
func (s *Server) Take(r *Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = slices.DeleteFunc(s.waiting, func(other *Request) bool { return other == r })
	fmt.Fprintln(s.calls, r, r.Ref.Namespace)
}

// Digest is a hash of all calls that have left, in their order, and of all that was written: every version of every object,
// without the text of messages.
func (s *Server) Digest() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := sha256.New()
	all.Write(s.calls.Sum(nil))
	for _, kind := range slices.Sorted(maps.Keys(s.store.log)) {
		for _, c := range s.store.log[kind] {
			var o map[string]any
			decode(encode(c.Object), &o)
			dropMessages(o)
			fmt.Fprintf(all, "%v %s\n", c.Deleted, encode(o))
		}
	}
	return all.Sum(nil)
}

// dropMessages takes the text of conditions out of what was decoded from JSON.
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

// Do lets a call happen and returns what a client would be told.
func (s *Server) Do(r *Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.do(&s.store)
}

// Changes returns the changes of a kind beyond the first n: what a watch shows.
func (s *Server) Changes(kind Kind, n int) []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.log[kind][n:]
}

// Version is the resource version of the newest change.
func (s *Server) Version() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.version
}

// List returns the objects of a kind in all namespaces, ordered by name. They are not to be changed.
func (s *Server) List(kind Kind) []client.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.store.view(kind, "")
}

// Create creates an object at once, by another hand than a client's.
func (s *Server) Create(o client.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.store.create(o)
	return err
}

// Edit changes an object at once, by another hand than a client's.
func (s *Server) Edit(ref Ref, change func(client.Object)) error {
	return s.edit(ref, change, false)
}

func (s *Server) edit(ref Ref, change func(client.Object), status bool) error {
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

// EditStatus changes the status of an object at once, by another hand than a client's.
func (s *Server) EditStatus(ref Ref, change func(client.Object)) error {
	return s.edit(ref, change, true)
}

// Mutate has a mutating webhook change the metadata of every object that is written from now on, other than one that is
// being deleted; nil: there is none any more.
func (s *Server) Mutate(webhook func(client.Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.webhook = webhook
}

// Delete deletes an object at once, by another hand than a client's. With force it takes off the
// finalizers: the object is gone.
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

func compare(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
