package nodeipam

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// knownNodes are the Nodes as they were last seen. The evidence about a Node only grows: CIDRs that are set stay, and a
// Node that is being deleted never stops being deleted. A UID that is proven to be gone has a tombstone and no entry.
type knownNodes struct {
	// Tombstones are about the UIDs of Nodes.
	term.Tombstones
	byUID map[types.UID]*nodeEntry
	// readErr is why Nodes, or objects that they depend on, may not be read; unread reports whether they never were.
	readErr error
	unread  bool
}

// nodeEntry is what is known of a Node.
type nodeEntry struct {
	*podcidr.Node
	resourceVersion string
	// lastSeenTakeover is the takeoverCount at which the Node was last seen.
	lastSeenTakeover int
	// labelsHash is the hash of the labels that the Node had last; 0 means unknown. The labels of a Node that has CIDRs
	// are not kept.
	labelsHash uint64
	// waiting is nil when the Node has CIDRs.
	waiting *waitState
}

// waitState is what matters of a Node only while it has no CIDRs.
type waitState struct {
	// firstSeen is when the Node was first seen.
	firstSeen time.Time
	// Retry counts the writes in a row that were refused permanently; nothing is granted before it is due.
	term.Retry
}

// newNodeEntry returns the entry of a Node that is seen for the first time.
func newNodeEntry(n *podcidr.Node, version string, now time.Time) *nodeEntry {
	out := &nodeEntry{Node: n, resourceVersion: version}
	if len(n.CIDRs) == 0 {
		out.waiting = &waitState{firstSeen: now}
	}
	return out
}

// nodesByAge returns the Nodes, oldest first.
func (kn *knownNodes) nodesByAge() []*nodeEntry {
	return slices.SortedFunc(maps.Values(kn.byUID), func(a, b *nodeEntry) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
}

// hasNodeCIDRs reports whether any Node has CIDRs.
func (kn *knownNodes) hasNodeCIDRs() bool {
	for _, n := range kn.byUID {
		if len(n.CIDRs) > 0 {
			return true
		}
	}
	return false
}

// plannableAt returns when a Node that waits can be planned for: where labels decide, not before they are there, as the
// Node keeps what it gets for life.
func (n *nodeEntry) plannableAt(chooses bool) time.Time {
	if due := n.waiting.firstSeen.Add(n.LabelsTimeout); chooses && n.LabelsTimeout > 0 && due.After(n.waiting.RetryAt) {
		return due
	}
	return n.waiting.RetryAt
}

// forgetNode records the proof that the UID of a Node is gone.
func (kn *knownNodes) forgetNode(uid types.UID) {
	kn.Add(uid)
	delete(kn.byUID, uid)
}

// applyList applies a list of all Nodes that began after the given takeover was written, and returns the UIDs that it
// proves to be gone. What was seen since that takeover began takes precedence where it is newer.
func (kn *knownNodes) applyList(listed map[types.UID]*nodeEntry, takeover int) (gone []types.UID) {
	for uid, n := range kn.byUID {
		if listed[uid] == nil && n.lastSeenTakeover < takeover {
			kn.forgetNode(uid) // it was there before the list began
			gone = append(gone, uid)
		}
	}
	for uid, n := range listed {
		known := kn.byUID[uid]
		if kn.Has(uid) || (known != nil && known.lastSeenTakeover == takeover && !term.IsNewerVersion(n.resourceVersion, known.resourceVersion)) {
			continue
		}
		if known != nil && n.waiting != nil && known.waiting != nil {
			n.waiting = known.waiting
		}
		if known != nil {
			n.labelsHash = known.labelsHash
		}
		n.lastSeenTakeover = takeover
		kn.byUID[uid] = n
	}
	return gone
}
