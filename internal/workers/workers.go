// Package workers runs jobs for owners that must not wait for each other: the writes of pools, and of the Nodes of
// clusters.
package workers

import (
	"container/list"
	"sync"
)

// Workers runs jobs, a bounded number at once: the jobs of an owner in the order of their submission, and owners by
// turns. A waiting job is a closure, not a goroutine with a stack, because hundreds wait in a burst.
//
// Each owner has a slot of its own in addition to the slots that all share: jobs of one owner that hang until they
// time out may occupy every shared slot without blocking any other owner.
//
// The cost of a job does not depend on the number of waiting jobs and of their owners, because a thousand pools have
// many writes after a restore.
type Workers[K comparable] struct {
	mu         sync.Mutex
	maxRunning int
	running    int
	// owners are the owners with a running or a waiting job.
	owners map[K]*ownerQueue
	// waitingOwners are the owners with waiting jobs, the next one first.
	waitingOwners list.List
}

// ownerQueue contains the jobs of an owner.
type ownerQueue struct {
	// running is the number of its running jobs.
	running int
	// waiting are its other jobs, the oldest one first.
	waiting []func()
	// listElement is its element in waitingOwners, nil if it has no waiting job.
	listElement *list.Element
}

// New returns Workers that run size jobs at once, plus one for each owner.
func New[K comparable](size int) *Workers[K] {
	return &Workers[K]{maxRunning: size, owners: map[K]*ownerQueue{}}
}

// Submit runs a job of an owner as soon as a slot is free. It returns at once.
func (w *Workers[K]) Submit(of K, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.owners[of]
	if o == nil {
		o = &ownerQueue{}
		w.owners[of] = o
	}
	if w.running >= w.maxRunning && o.running > 0 {
		o.waiting = append(o.waiting, do)
		if o.listElement == nil {
			o.listElement = w.waitingOwners.PushBack(of)
		}
		return
	}
	w.markRunning(o)
	go w.runJobs(of, do)
}

func (w *Workers[K]) markRunning(o *ownerQueue) {
	w.running++
	o.running++
}

func (w *Workers[K]) runJobs(of K, do func()) {
	for more := true; more; {
		do()
		of, do, more = w.finishJob(of)
	}
}

// finishJob ends a job of an owner and returns the one that takes its slot, if any: the oldest of the same owner if
// that has no other running job, else the oldest of the owner whose turn it is, unless the slot is an owner's own.
func (w *Workers[K]) finishJob(done K) (of K, do func(), more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	o := w.owners[done]
	o.running--
	switch {
	case o.running == 0 && o.listElement != nil:
		return done, w.popWaiting(done, o), true
	case o.running == 0:
		delete(w.owners, done)
	}
	if w.running >= w.maxRunning || w.waitingOwners.Len() == 0 {
		return of, nil, false
	}
	of = w.waitingOwners.Front().Value.(K)
	return of, w.popWaiting(of, w.owners[of]), true
}

// popWaiting removes the oldest job of a waiting owner and marks it as running. The other owners have their turn
// before its next one.
func (w *Workers[K]) popWaiting(of K, o *ownerQueue) func() {
	do := o.waiting[0]
	o.waiting[0] = nil
	o.waiting = o.waiting[1:]
	w.waitingOwners.Remove(o.listElement)
	o.listElement = nil
	if len(o.waiting) > 0 {
		o.listElement = w.waitingOwners.PushBack(of)
	}
	w.markRunning(o)
	return do
}
