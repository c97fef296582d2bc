package version

import (
	"runtime/debug"
	"testing"
)

func TestResolveVersion(t *testing.T) {
	for name, tc := range map[string]struct{ linked, module, want string }{
		"make":                         {"v0.1.0", "v0.1.1-0.20261101120000-0123456789ab", "v0.1.0"},
		"make, of no tag":              {"v0.1.0-dev+0123456789ab-dirty", "(devel)", "v0.1.0-dev+0123456789ab-dirty"},
		"go install of a release":      {"", "v0.1.0", "v0.1.0"},
		"go build in a clone":          {"", "v0.1.1-0.20261101120000-0123456789ab+dirty", "v0.1.1-0.20261101120000-0123456789ab+dirty"},
		"go build -buildvcs=false":     {"", "(devel)", "v0.0.0-dev"},
		"a build that says nothing":    {"", "", "v0.0.0-dev"},
		"make -buildvcs=false":         {"v0.1.0", "(devel)", "v0.1.0"},
		"make, without build settings": {"v0.1.0", "", "v0.1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := resolveVersion(tc.linked, &debug.BuildInfo{Main: debug.Module{Version: tc.module}}); got != tc.want {
				t.Errorf("%q, not %q", got, tc.want)
			}
		})
	}
}
