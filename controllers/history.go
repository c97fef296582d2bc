package controllers

import (
	"context"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
)

// rollbackMonitor ends the manager when its API server shows an older state than it has shown before. The manager that
// is started in its place remembers nothing of the newer state.
type rollbackMonitor struct {
	rollbacks chan *stream.VersionRollbackError
}

// newRollbackMonitor monitors what the streams of the management cluster show.
func newRollbackMonitor(streams *stream.Client) *rollbackMonitor {
	out := &rollbackMonitor{rollbacks: make(chan *stream.VersionRollbackError, 1)}
	streams.OnRollback = func(err *stream.VersionRollbackError) {
		select {
		case out.rollbacks <- err:
		default: // one is recorded already
		}
	}
	return out
}

// Start implements manager.Runnable.
func (h *rollbackMonitor) Start(ctx context.Context) error {
	select {
	case err := <-h.rollbacks:
		return err
	case <-ctx.Done():
		return nil
	}
}

// NeedLeaderElection returns false: a manager that waits for its election has a memory, too.
func (*rollbackMonitor) NeedLeaderElection() bool { return false }
