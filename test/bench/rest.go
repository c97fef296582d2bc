package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

const (
	// idlePeriod is how long an idle manager is measured.
	idlePeriod = 10 * time.Second
	// fewReconciles allows for the reconciles of an idle manager: each pool once a minute, and for the pool with
	// addresses the check of its orphans.
	fewReconciles = 10
)

var errNotAtRest = errors.New("it never comes to rest")

// measureRest waits until a manager has nothing more to do, and returns its activity in idlePeriod. It returns an
// error if the manager sends any request, or reconciles more than fewReconciles times. A manager with workload
// clusters is never idle: it probes each of them regularly.
func measureRest(ctx context.Context, m *framework.Manager) (framework.Activity, error) {
	return measureRestWithin(ctx, m, fewReconciles)
}

// measureRestWithin is measureRest for a manager with more pools, which may reconcile so often.
func measureRestWithin(ctx context.Context, m *framework.Manager, reconciles float64) (framework.Activity, error) {
	var last framework.Activity
	if _, err := waitUntilStable(ctx, idlePeriod/2, func() (int, error) {
		var err error
		last, err = m.ReadActivity(ctx)
		return int(last.Requests), err
	}); err != nil {
		return framework.Activity{}, err
	}
	if err := sleepContext(ctx, idlePeriod); err != nil {
		return framework.Activity{}, err
	}
	now, err := m.ReadActivity(ctx)
	if err != nil {
		return framework.Activity{}, err
	}
	does := now.Since(last)
	if does.Requests > 0 || does.Reconciles > reconciles {
		err = fmt.Errorf("%w: %.0f requests, %.0f reconciles in %s", errNotAtRest, does.Requests, does.Reconciles, idlePeriod)
	}
	return does, err
}
