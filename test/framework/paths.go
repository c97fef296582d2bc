package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const (
	modulePath       = "github.com/butlerdotdev/cluster-api-ipam-provider-butler"
	clusterAPIModule = "sigs.k8s.io/cluster-api"

	// assetsEnv names a directory with etcd and kube-apiserver, which is used instead of bin/k8s.
	assetsEnv = "KUBEBUILDER_ASSETS"
)

// clusterAPICRDs are the kinds of Cluster API that the provider reads and writes. They are served without their
// conversion webhook, and so only in the storage version, v1beta2, unless package coreapi serves it.
var clusterAPICRDs = []string{
	"cluster.x-k8s.io_clusters.yaml",
	"cluster.x-k8s.io_machines.yaml",
	"ipam.cluster.x-k8s.io_ipaddressclaims.yaml",
	"ipam.cluster.x-k8s.io_ipaddresses.yaml",
}

// FindRepoRoot returns the directory of this module's go.mod, which it searches for from the working directory
// upwards.
func FindRepoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module "+modulePath+"\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod of %s in the working directory or above it", modulePath)
		}
		dir = parent
	}
}

// RepoRootForTest returns the directory of this module's go.mod, and fails the test if there is none.
func RepoRootForTest(tb testing.TB) string {
	tb.Helper()
	dir, err := FindRepoRoot()
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// FindAssets returns the directory that holds etcd and kube-apiserver.
func FindAssets() (string, error) {
	dir := os.Getenv(assetsEnv)
	hint := "unset " + assetsEnv + " and run `make control-plane`"
	if dir == "" {
		root, err := FindRepoRoot()
		if err != nil {
			return "", err
		}
		dir, hint = filepath.Join(root, "bin", "k8s"), "run `make control-plane`"
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", fmt.Errorf("no %s in %s: %s", name, dir, hint)
		}
	}
	return dir, nil
}

// CRDPaths returns the files of the CRDs that a control plane starts with: those of this repository, and those of the
// Cluster API module that this repository is built with.
func CRDPaths(ctx context.Context) ([]string, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return nil, err
	}
	own := filepath.Join(root, "config", "crd", "bases")
	if _, err := os.Stat(own); err != nil {
		return nil, fmt.Errorf("no CRDs in %s: run `make crds`", own)
	}

	dir, err := FindClusterAPIDir(ctx)
	if err != nil {
		return nil, err
	}
	paths := []string{own}
	for _, name := range clusterAPICRDs {
		paths = append(paths, filepath.Join(dir, "core", "config", "crd", "bases", name))
	}
	return paths, nil
}

// FindClusterAPIDir returns the directory of the source of Cluster API, in the version that this repository is built
// with.
func FindClusterAPIDir(ctx context.Context) (string, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return "", err
	}
	return FindModuleDir(ctx, root, clusterAPIModule)
}

// FindModuleDir returns the source directory of a module in the version that the go.mod in dir pins.
func FindModuleDir(ctx context.Context, dir, module string) (string, error) {
	path, err := runGoCommand(ctx, dir, "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", err
	}
	if path == "" {
		return "", fmt.Errorf("module %s is not downloaded: run `go mod download` in %s", module, dir)
	}
	return path, nil
}

// BuildManager builds the manager from the current source into dir and returns its path, so that a test runs the code
// of its own tree and not an older bin/manager.
func BuildManager(ctx context.Context, dir string) (string, error) {
	return buildProgram(ctx, dir, "manager", ".")
}

// BuildHostLB does the same for the program that shows addresses on a host.
func BuildHostLB(ctx context.Context, dir string) (string, error) {
	return buildProgram(ctx, dir, "butler-host-lb", "./cmd/butler-host-lb")
}

func buildProgram(ctx context.Context, dir, name, source string) (string, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", bin, source)
	cmd.Dir = root
	if !strings.Contains(os.Getenv("GOFLAGS"), "-race") { // -race needs cgo
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", source, err, out)
	}
	return bin, nil
}

func exitStderr(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return ": " + strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}
