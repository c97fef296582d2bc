package nodeipam

import (
	"cmp"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// waitingNodes are the Nodes that have no CIDRs and no grant, and are not being deleted. Each is in one of pending and
// refused. All refused Nodes are pending again as soon as something changes that may give one of them room.
type waitingNodes struct {
	// pending are the Nodes that are still to be planned for; refused are those for which there is no room, or no
	// range.
	pending map[types.UID]*nodeEntry
	refused map[types.UID]podcidr.Refusal

	nodes  *knownNodes
	events *nodeEvents
}

// removeWaiting records that a Node does not wait: it has CIDRs or a grant, or is being deleted or gone.
func (wn *waitingNodes) removeWaiting(uid types.UID) {
	delete(wn.pending, uid)
	delete(wn.refused, uid)
	wn.events.dropRefusal(uid)
}

// requeueRefused queues the refused Nodes for planning again, as something has changed.
func (wn *waitingNodes) requeueRefused() {
	for uid := range wn.refused {
		if n := wn.nodes.byUID[uid]; n != nil {
			wn.pending[uid] = n
		}
	}
	clear(wn.refused)
	wn.events.dropRefusals()
}

// compareRetryOrder orders Nodes for retries: first those with the fewest refused writes, and among these the oldest.
func (wn *waitingNodes) compareRetryOrder(a, b *podcidr.Node) int {
	return cmp.Or(cmp.Compare(wn.pending[a.UID].waiting.Failures, wn.pending[b.UID].waiting.Failures), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Name, b.Name))
}

// requeueAll queues all Nodes without CIDRs that are not being deleted for planning, those with a grant too.
func (wn *waitingNodes) requeueAll() {
	clear(wn.pending)
	clear(wn.refused)
	for uid, n := range wn.nodes.byUID {
		if len(n.CIDRs) == 0 && !n.Deleting {
			wn.pending[uid] = n
		}
	}
}
