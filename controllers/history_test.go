package controllers

import (
	"context"
	"errors"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
)

// TestRollbackEndsManager checks that a manager whose etcd was put back ends with that error, however often it was
// noticed; otherwise it ends with its context.
func TestRollbackEndsManager(t *testing.T) {
	streams := &stream.Client{}
	h := newRollbackMonitor(streams)
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := h.Start(ctx); err != nil {
		t.Error(err)
	}
	for range 3 {
		streams.OnRollback(&stream.VersionRollbackError{Resource: "ipaddresses", Current: 7, Previous: 9})
	}
	var back *stream.VersionRollbackError
	if err := h.Start(t.Context()); !errors.As(err, &back) {
		t.Error(err)
	}
}
