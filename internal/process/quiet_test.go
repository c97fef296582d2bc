package process

import (
	"slices"
	"testing"

	"github.com/go-logr/logr/funcr"
)

func TestWithQuietHealthChecks(t *testing.T) {
	for verbosity, want := range map[int][]string{
		0: {`"controller-runtime" "level"=0 "msg"="one"`},
		1: {`"controller-runtime" "level"=0 "msg"="one"`, `"controller-runtime" "level"=1 "msg"="two"`, `"controller-runtime/healthz" "level"=0 "msg"="failed" "a"=1`},
	} {
		var got []string
		log := WithQuietHealthChecks(funcr.New(func(prefix, args string) { got = append(got, `"`+prefix+`" `+args) }, funcr.Options{Verbosity: verbosity})).WithName("controller-runtime")
		log.Info("one")
		log.V(1).Info("two")
		log.WithName("healthz").WithValues("a", 1).WithCallDepth(1).Info("failed")
		if !slices.Equal(got, want) {
			t.Errorf("-v=%d: %q", verbosity, got)
		}
	}
}
