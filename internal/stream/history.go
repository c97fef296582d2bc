package stream

import (
	"fmt"
	"strconv"
	"sync"
)

// history is the newest moment that the API server has shown of each resource. Its consistent reads never show an older one,
// unless its storage was put back. What a process knows then is no past of what there is: objects that it has seen end are
// there, with the same UID, and a watch that goes on shows nothing for as long as the new history is shorter than the old one.
// The zero value is ready for use.
type history struct {
	mu     sync.Mutex
	newest map[string]uint64
	// listed is what the last whole list of each resource has shown: a watch that begins there needs no other proof.
	listed map[string]string
}

// moment is the newest that was shown of a resource, 0 if nothing was.
func (h *history) moment(resource string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest[resource]
}

// note takes a resource version that was shown. One that is no number says nothing of an order.
func (h *history) note(resource, version string) {
	is, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newest == nil {
		h.newest = map[string]uint64{}
	}
	h.newest[resource] = max(h.newest[resource], is)
}

func (h *history) noteList(resource, version string) {
	h.note(resource, version)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listed == nil {
		h.listed = map[string]string{}
	}
	h.listed[resource] = version
}

func (h *history) isOfList(resource, version string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listed[resource] == version
}

// check reports an error if a consistent read shows an older moment than one that was shown before it began.
func check(resource, version string, before uint64) error {
	if is, err := strconv.ParseUint(version, 10, 64); err == nil && is < before {
		return &WentBackError{Resource: resource, Is: is, Was: before}
	}
	return nil
}

// WentBackError says that the API server shows an older state than it has shown.
type WentBackError struct {
	Resource string
	Is, Was  uint64
}

// Error implements error.
func (e *WentBackError) Error() string {
	return fmt.Sprintf("the API server is at resource version %d of %s, and was at %d: its etcd was put back while this process ran, so what the process knows is no past of what there is",
		e.Is, e.Resource, e.Was)
}
