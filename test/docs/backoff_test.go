package docs

import (
	"go/ast"
	"strings"
	"testing"
)

// A write that is refused for an hour is retried within a minute after it is no longer refused: no controller has the
// default backoff of controller-runtime, which may be a quarter of an hour.
func TestControllersWaitAMinuteAtMost(t *testing.T) {
	controllers, limiters := 0, 0
	for dir, files := range readSource(t).files {
		made, limited := 0, 0
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool {
				called, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if strings.HasSuffix(called.Sel.Name, "ControllerManagedBy") {
					made++
				}
				if of, ok := called.X.(*ast.Ident); ok && of.Name == "guard" && called.Sel.Name == "NewRateLimiter" {
					limited++
				}
				return true
			})
		}
		if made > limited {
			t.Errorf("%s makes %d controllers, and says of %d how long they wait after errors: let guard.NewRateLimiter say it", dir, made, limited)
		}
		controllers, limiters = controllers+made, limiters+limited
	}
	if controllers < 8 || limiters < 8 {
		t.Errorf("there are %d controllers and %d pauses; this test does not see them", controllers, limiters)
	}
}
