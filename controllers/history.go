package controllers

import (
	"context"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
)

// history ends the manager when its API server shows an older state than it has shown. The manager that is started in its
// place knows nothing but what there is.
type history struct{ back chan *stream.WentBackError }

// historyOf notices what the streams of the management cluster show.
func historyOf(streams *stream.Client) *history {
	out := &history{back: make(chan *stream.WentBackError, 1)}
	streams.WentBack = func(err *stream.WentBackError) {
		select {
		case out.back <- err:
		default: // it is known
		}
	}
	return out
}

// Start implements manager.Runnable.
func (h *history) Start(ctx context.Context) error {
	select {
	case err := <-h.back:
		return err
	case <-ctx.Done():
		return nil
	}
}

// NeedLeaderElection reports that a manager that waits for its election has a memory, too.
func (*history) NeedLeaderElection() bool { return false }
