package main

import (
	"context"
	"io"
	"os"
	"testing"
	"time"
)

// A short run, so that a failure of the long runs of `make chaos` is noticed early.
func TestShortChaosRun(t *testing.T) {
	o := defaultOptions()
	o.seed, o.minKills, o.minClaims, o.users, o.apiServerKillInterval = 1, 8, 400, 40, 15*time.Second
	if testing.Short() {
		o.minKills, o.minClaims = 3, 150
	}
	o.outDir = t.TempDir()
	runChaosTest(t, o, runClaimChaos)
}

// The same for Nodes.
func TestChaosOfNodes(t *testing.T) {
	o := defaultOptions()
	o.seed, o.minKills, o.nodeCount, o.users, o.apiServerKillInterval = 1, 6, 400, 40, 15*time.Second
	if testing.Short() {
		o.minKills, o.nodeCount = 3, 150
	}
	runChaosTest(t, o, runNodeChaos)
}

func runChaosTest(t *testing.T, o options, run func(context.Context, options, io.Writer) (*result, error)) {
	t.Helper()
	res, err := run(t.Context(), o, os.Stdout)
	if err != nil {
		t.Fatalf("seed %d: %v", o.seed, err)
	}
	t.Log("\n" + formatTable([]*result{res}))
	for _, v := range res.violations {
		t.Error(v)
	}
}
