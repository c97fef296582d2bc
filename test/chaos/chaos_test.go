package main

import (
	"context"
	"io"
	"os"
	"testing"
	"time"
)

// A short run, so that what `make chaos` does at length is never broken for long.
func TestChaos(t *testing.T) {
	o := defaults()
	o.seed, o.kills, o.claims, o.users, o.apiServerEvery = 1, 8, 400, 40, 15*time.Second
	if testing.Short() {
		o.kills, o.claims = 3, 150
	}
	o.out = t.TempDir()
	wild(t, o, run)
}

// The same of Nodes.
func TestChaosOfNodes(t *testing.T) {
	o := defaults()
	o.seed, o.kills, o.nodes, o.users, o.apiServerEvery = 1, 6, 400, 40, 15*time.Second
	if testing.Short() {
		o.kills, o.nodes = 3, 150
	}
	wild(t, o, runNodes)
}

func wild(t *testing.T, o options, run func(context.Context, options, io.Writer) (*result, error)) {
	t.Helper()
	res, err := run(t.Context(), o, os.Stdout)
	if err != nil {
		t.Fatalf("seed %d: %v", o.seed, err)
	}
	t.Log("\n" + table([]*result{res}))
	for _, v := range res.violations {
		t.Error(v)
	}
}
