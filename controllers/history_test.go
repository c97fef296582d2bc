package controllers

import (
	"context"
	"errors"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/stream"
)

// A manager whose etcd was put back ends with that error, however often it was noticed; else it ends with its context.
func TestHistory(t *testing.T) {
	streams := &stream.Client{}
	h := historyOf(streams)
	ctx, end := context.WithCancel(t.Context())
	end()
	if err := h.Start(ctx); err != nil {
		t.Error(err)
	}
	for range 3 {
		streams.WentBack(&stream.WentBackError{Resource: "ipaddresses", Is: 7, Was: 9})
	}
	var back *stream.WentBackError
	if err := h.Start(t.Context()); !errors.As(err, &back) {
		t.Error(err)
	}
}
