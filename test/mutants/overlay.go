package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// findModuleRoot returns the directory of the go.mod that the working directory belongs to.
func findModuleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("no go.mod in the working directory or above it")
	}
	return filepath.Dir(mod), nil
}

// writeOverlay writes the patched files to a directory and returns the path of an overlay file, which makes the go
// command read them instead of the real ones.
func writeOverlay(ctx context.Context, root, dir string, m mutant) (string, error) {
	replace := map[string]string{}
	for _, f := range m.files {
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, f)] = to
	}
	cmd := exec.CommandContext(ctx, "git", "apply", m.patchPath)
	cmd.Dir = dir
	// If the directory is inside a repository, git would resolve the files from the root of that.
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the patch does not apply; make it anew on the code as it is: %w\n%s", err, out)
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, raw, 0o600)
}

// newGoCommand returns a go command with an overlay; each go command that it starts inherits the overlay.
func newGoCommand(ctx context.Context, root, overlay string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = os.Environ()
	if overlay != "" {
		cmd.Env = append(cmd.Env, strings.TrimSpace("GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay))
	}
	return cmd
}
