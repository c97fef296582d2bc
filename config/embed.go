// Package config has the manifests. The manager knows by them what each component needs.
package config

import "embed"

// Files are the roles, and the manifests of components that bind them.
//
//go:embed rbac/*role.yaml components/*/component.yaml
var Files embed.FS
