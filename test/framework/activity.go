package framework

import "context"

// Activity is what a manager has done since it started: seconds of CPU, reconciles, and requests to API servers.
type Activity struct{ CPU, Reconciled, Requests float64 }

// Since returns what was done after an earlier reading.
func (a Activity) Since(earlier Activity) Activity {
	return Activity{a.CPU - earlier.CPU, a.Reconciled - earlier.Reconciled, a.Requests - earlier.Requests}
}

// Activity reads what the manager has done, from its metrics.
func (m *Manager) Activity(ctx context.Context) (out Activity, err error) {
	if out.CPU, err = m.Metric(ctx, "process_cpu_seconds_total"); err != nil {
		return out, err
	}
	if out.Reconciled, err = m.Metric(ctx, "controller_runtime_reconcile_total"); err != nil {
		return out, err
	}
	out.Requests, err = m.Metric(ctx, "rest_client_requests_total")
	return out, err
}
