// Package version is the version of what was built here: the manager, butler-host-lb and the kubectl plugin.
package version

import (
	"cmp"
	"runtime/debug"
)

// linked is what the linker writes here: LINKED of the Makefile.
var linked string

// Get is the version of the running program.
func Get() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return of(linked, info)
}

// unknown is for who compares versions what comes before all others.
const unknown = "v0.0.0-dev"

// of is the version that the linker wrote, or that Go knows: go install has that of the module, go build in a clone one
// that it derives from the commit, and otherwise it says that it has none.
func of(linked string, info *debug.BuildInfo) string {
	if linked == "" && info.Main.Version == "(devel)" {
		return unknown
	}
	return cmp.Or(linked, info.Main.Version, unknown)
}
