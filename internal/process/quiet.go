package process

import "github.com/go-logr/logr"

// quiet is a log in which what the health checks say needs one more -v. A probe asks some times a second until the
// manager is ready, and each answer was a line without a reason: /readyz?verbose says which check it is.
type quiet struct {
	logr.LogSink
	health bool
}

// Quietly has the health checks of a log say less.
func Quietly(log logr.Logger) logr.Logger { return log.WithSink(quiet{LogSink: log.GetSink()}) }

// Enabled implements logr.LogSink.
func (q quiet) Enabled(level int) bool {
	if q.health {
		level++
	}
	return q.LogSink.Enabled(level)
}

// WithName implements logr.LogSink. The names are controller-runtime's.
func (q quiet) WithName(name string) logr.LogSink {
	return quiet{q.LogSink.WithName(name), q.health || name == "healthz"}
}

// WithValues implements logr.LogSink.
func (q quiet) WithValues(values ...any) logr.LogSink {
	return quiet{q.LogSink.WithValues(values...), q.health}
}

// WithCallDepth implements logr.CallDepthLogSink: a line names the file that it is from.
func (q quiet) WithCallDepth(depth int) logr.LogSink {
	if sink, can := q.LogSink.(logr.CallDepthLogSink); can {
		return quiet{sink.WithCallDepth(depth), q.health}
	}
	return q
}
