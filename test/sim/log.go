package sim

import (
	"context"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// WithLog returns a context whose logger passes the message of each line to record, without its values.
func WithLog(ctx context.Context, record func(text string, isError bool)) context.Context {
	return log.IntoContext(ctx, logr.New(logSink{record}))
}

// logSink implements logr.LogSink.
type logSink struct{ record func(string, bool) }

func (logSink) Init(logr.RuntimeInfo)                  {}
func (logSink) Enabled(int) bool                       { return true }
func (s logSink) Info(_ int, text string, _ ...any)    { s.record(text, false) }
func (s logSink) Error(_ error, text string, _ ...any) { s.record(text, true) }
func (s logSink) WithValues(...any) logr.LogSink       { return s }
func (s logSink) WithName(string) logr.LogSink         { return s }
