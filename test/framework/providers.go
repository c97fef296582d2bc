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

// ProviderCRDs are the directories with the CRDs of other providers, of all without modules, in the versions that
// testdata/providers/go.mod pins. The go command downloads their source where it is not there yet.
func ProviderCRDs(ctx context.Context, modules ...string) ([]string, error) {
	root, err := RepoRoot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, "test", "framework", "testdata", "providers")
	out, err := goOutput(ctx, dir, "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var pinned struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal([]byte(out), &pinned); err != nil {
		return nil, fmt.Errorf("reading the go.mod in %s: %w", dir, err)
	}
	// With their versions, or the go command wants to know what they require, too.
	args := []string{"mod", "download", "-json"}
	for _, m := range pinned.Require {
		if len(modules) > 0 && !slices.Contains(modules, m.Path) {
			continue
		}
		args = append(args, m.Path+"@"+m.Version)
	}
	if out, err = goOutput(ctx, dir, args...); err != nil {
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
		found, err := crdDirs(module.Dir)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
}

// crdDirs are where controller-gen wrote the CRDs of a module.
func crdDirs(module string) ([]string, error) {
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

// goOutput is what a go command prints.
func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s in %s: %w%s", strings.Join(args, " "), dir, err, stderrOf(err))
	}
	return strings.TrimSpace(string(out)), nil
}
