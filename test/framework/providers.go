package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// FindProviderCRDs returns the directories of the CRDs of other providers, in the versions that
// testdata/providers/go.mod pins; without modules it returns those of all. The go command downloads source that is
// missing.
func FindProviderCRDs(ctx context.Context, modules ...string) ([]string, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "test", "framework", "testdata", "providers")
	out, err := runGoCommand(ctx, dir, "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var pinned struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(out), &pinned); err != nil {
		return nil, fmt.Errorf("reading the go.mod in %s: %w", dir, err)
	}
	// The versions are given, or the go command would resolve the requirements of the modules, too.
	args := []string{"mod", "download", "-json"}
	for _, m := range pinned.Require {
		if len(modules) > 0 && !slices.Contains(modules, m.Path) {
			continue
		}
		args = append(args, m.Path+"@"+m.Version)
	}
	if out, err = runGoCommand(ctx, dir, args...); err != nil {
		return nil, err
	}
	var dirs []string
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var module struct{ Path, Dir string }
		if err := decoder.Decode(&module); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading what go mod download says: %w", err)
		}
		found, err := findCRDDirs(module.Dir)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
}

// findCRDDirs returns the directories in which controller-gen wrote the CRDs of a module.
func findCRDDirs(module string) ([]string, error) {
	for _, pattern := range []string{"config/crd/bases", "config/*/crd/bases"} {
		found, err := filepath.Glob(filepath.Join(module, pattern))
		if err != nil {
			return nil, fmt.Errorf("looking for CRDs: %w", err)
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, fmt.Errorf("%s has no CRDs where controller-gen writes them", module)
}

// runGoCommand runs a go command in dir and returns its output.
func runGoCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w%s", strings.Join(args, " "), dir, err, exitStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}
