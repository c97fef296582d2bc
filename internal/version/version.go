// Package version has the version of the programs that are built here: the manager, butler-host-lb and the kubectl
// plugin.
package version

import (
	"cmp"
	"runtime/debug"
)

// linked is set by the linker: LINKED of the Makefile.
var linked string

// Get returns the version of the running program.
func Get() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return resolveVersion(linked, info)
}

// unknownVersion comes before all other versions in a comparison.
const unknownVersion = "v0.0.0-dev"

// resolveVersion returns the version that the linker set, or the one of the build info: go install sets that of the
// module, and go build in a clone derives one from the commit. Where neither has a version it returns unknownVersion.
func resolveVersion(linked string, info *debug.BuildInfo) string {
	if linked == "" && info.Main.Version == "(devel)" {
		return unknownVersion
	}
	return cmp.Or(linked, info.Main.Version, unknownVersion)
}
