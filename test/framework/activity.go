package framework

import "context"

// Activity counts what a manager has done since it started: seconds of CPU, reconciles, and requests to API servers.
type Activity struct{ CPU, Reconciles, Requests float64 }

// Since returns the difference to an earlier reading.
func (a Activity) Since(earlier Activity) Activity {
	return Activity{a.CPU - earlier.CPU, a.Reconciles - earlier.Reconciles, a.Requests - earlier.Requests}
}

// ReadActivity reads the manager's activity from its metrics.
func (m *Manager) ReadActivity(ctx context.Context) (out Activity, err error) {
	if out.CPU, err = m.ReadMetric(ctx, "process_cpu_seconds_total"); err != nil {
		return out, err
	}
	if out.Reconciles, err = m.ReadMetric(ctx, "controller_runtime_reconcile_total"); err != nil {
		return out, err
	}
	out.Requests, err = m.ReadMetric(ctx, "rest_client_requests_total")
	return out, err
}
