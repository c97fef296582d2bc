package process

import "github.com/go-logr/logr"

// quietHealthSink is a log sink that logs messages of the health checks one level higher. A probe runs several times
// a second until the manager is ready, and each run would log a line without a reason; /readyz?verbose shows which
// check fails.
type quietHealthSink struct {
	logr.LogSink
	isHealthCheck bool
}

// WithQuietHealthChecks returns a logger that logs less of the health checks.
func WithQuietHealthChecks(log logr.Logger) logr.Logger {
	return log.WithSink(quietHealthSink{LogSink: log.GetSink()})
}

// Enabled implements logr.LogSink.
func (q quietHealthSink) Enabled(level int) bool {
	if q.isHealthCheck {
		level++
	}
	return q.LogSink.Enabled(level)
}

// WithName implements logr.LogSink. The name "healthz" is controller-runtime's.
func (q quietHealthSink) WithName(name string) logr.LogSink {
	return quietHealthSink{q.LogSink.WithName(name), q.isHealthCheck || name == "healthz"}
}

// WithValues implements logr.LogSink.
func (q quietHealthSink) WithValues(values ...any) logr.LogSink {
	return quietHealthSink{q.LogSink.WithValues(values...), q.isHealthCheck}
}

// WithCallDepth implements logr.CallDepthLogSink, so that a line names the file that it comes from.
func (q quietHealthSink) WithCallDepth(depth int) logr.LogSink {
	if sink, can := q.LogSink.(logr.CallDepthLogSink); can {
		return quietHealthSink{sink.WithCallDepth(depth), q.isHealthCheck}
	}
	return q
}
