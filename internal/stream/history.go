package stream

import (
	"fmt"
	"strconv"
	"sync"
)

// versionHistory records the newest resource version that the API server has shown for each resource. Its consistent
// reads never show an older one, unless its storage was restored to an earlier state. Then what a process knows is
// not a past state of what exists: objects whose end it has seen exist, with the same UID, and a watch that continues
// shows nothing for as long as the new history is shorter than the old one. The zero value is ready for use.
type versionHistory struct {
	mu             sync.Mutex
	newestVersions map[string]uint64
	// listVersions is the version of the last complete list of each resource: a watch that begins there needs no
	// other proof.
	listVersions map[string]string
}

// newestVersion returns the newest version that was shown for a resource, 0 if there is none.
func (h *versionHistory) newestVersion(resource string) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newestVersions[resource]
}

// recordVersion records a resource version that was shown. It ignores one that is not a number, which has no order.
func (h *versionHistory) recordVersion(resource, version string) {
	current, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.newestVersions == nil {
		h.newestVersions = map[string]uint64{}
	}
	h.newestVersions[resource] = max(h.newestVersions[resource], current)
}

func (h *versionHistory) recordList(resource, version string) {
	h.recordVersion(resource, version)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listVersions == nil {
		h.listVersions = map[string]string{}
	}
	h.listVersions[resource] = version
}

func (h *versionHistory) isListVersion(resource, version string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listVersions[resource] == version
}

// checkNotOlder returns an error if a consistent read shows an older version than one that was shown before the read
// began.
func checkNotOlder(resource, version string, before uint64) error {
	if current, err := strconv.ParseUint(version, 10, 64); err == nil && current < before {
		return &VersionRollbackError{Resource: resource, Current: current, Previous: before}
	}
	return nil
}

// VersionRollbackError is the error of a read that shows an older state than the API server has shown before.
type VersionRollbackError struct {
	Resource          string
	Current, Previous uint64
}

// Error implements error.
func (e *VersionRollbackError) Error() string {
	return fmt.Sprintf("the API server is at resource version %d of %s, and was at %d: its etcd was restored while this process ran, so the memory of this process is invalid",
		e.Current, e.Resource, e.Previous)
}
