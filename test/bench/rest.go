package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// idle is how long a manager is watched that has nothing to do.
	idle = 10 * time.Second
	// fewReconciles are those of a manager at rest: each pool is looked at once a minute, and the one with addresses at
	// its orphans too.
	fewReconciles = 10
)

var errNoRest = errors.New("it never comes to rest")

// rested waits until a manager has nothing more to do, and returns what it does then in the time of idle. It is an
// error if that is anything. A manager that has workload clusters is never that quiet: it asks each now and then
// whether it is there.
func rested(ctx context.Context, m *framework.Manager) (framework.Activity, error) {
	return restedBut(ctx, m, fewReconciles)
}

// restedBut is rested of a manager with more pools than one, which reconciles so often.
func restedBut(ctx context.Context, m *framework.Manager, reconciles float64) (framework.Activity, error) {
	var last framework.Activity
	if _, err := quiet(ctx, idle/2, func() (int, error) {
		var err error
		last, err = m.Activity(ctx)
		return int(last.Requests), err
	}); err != nil {
		return framework.Activity{}, err
	}
	if err := pause(ctx, idle); err != nil {
		return framework.Activity{}, err
	}
	now, err := m.Activity(ctx)
	if err != nil {
		return framework.Activity{}, err
	}
	does := now.Since(last)
	if does.Requests > 0 || does.Reconciled > reconciles {
		err = fmt.Errorf("%w: %.0f requests, %.0f reconciles in %s", errNoRest, does.Requests, does.Reconciled, idle)
	}
	return does, err
}
