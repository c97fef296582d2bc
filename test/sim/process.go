package sim

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/faults"
)

// Manager is a manager under test. Its type embeds *Process.
type Manager interface {
	// ShowChange delivers what a watch shows.
	ShowChange(c faults.Change)
	// ReplaceKind delivers a list of all objects of a kind, as they were when the list was made.
	ReplaceKind(kind faults.Kind, listed []client.Object)
	// Queues returns the queues of the controllers, in a fixed order.
	Queues() []*Queue

	process() *Process
}

// Process is what runs a manager: it can be killed, it can be paused, and its watches can lag behind.
type Process struct {
	// Name is the name of the manager and of its clients.
	Name string
	// Context ends when the process is killed.
	Context context.Context //nolint:containedctx // the life of the process
	// Dead reports whether the process was killed. Asleep reports whether it does not run, while its calls may be in
	// flight.
	Dead, Asleep bool
	// Synced reports whether the caches are filled: no reconcile begins before that.
	Synced bool

	cancel  context.CancelFunc
	watches []*watch
}

// watch is the watch of a process on the objects of a kind.
type watch struct {
	server *faults.Server
	kind   faults.Kind
	// seen is how many changes the watch has shown. It shows none while it is muted.
	seen  int
	muted bool
}

func (p *Process) process() *Process { return p }

// IsRunning reports whether the process runs.
func (p *Process) IsRunning() bool { return !p.Dead && !p.Asleep }

// Kill kills the process between two instructions.
func (p *Process) Kill() {
	p.Dead = true
	p.cancel()
}

// AddWatches adds watches on kinds of a server. They show changes in the order in which they are added.
func (p *Process) AddWatches(server *faults.Server, kinds ...faults.Kind) {
	for _, kind := range kinds {
		p.watches = append(p.watches, &watch{server: server, kind: kind})
	}
}

// MuteWatches makes the watches on some kinds show nothing until they are unmuted.
func (p *Process) MuteWatches(kinds ...faults.Kind) {
	for _, kind := range kinds {
		p.watchOf(kind).muted = true
	}
}

// UnmuteWatches makes the watches on some kinds show what they have not shown.
func (p *Process) UnmuteWatches(kinds ...faults.Kind) {
	for _, kind := range kinds {
		p.watchOf(kind).muted = false
	}
}

// IsMuted reports whether the watch on a kind is muted.
func (p *Process) IsMuted(kind faults.Kind) bool { return p.watchOf(kind).muted }

// watchOf returns the watch on a kind, which must exist.
func (p *Process) watchOf(kind faults.Kind) *watch {
	for _, w := range p.watches {
		if w.kind == kind {
			return w
		}
	}
	panic("no watch on " + string(kind))
}
