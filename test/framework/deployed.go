package framework

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// deploymentEnv returns the environment that the Deployment gives the manager, as name=value: the manager's use of
// resources is measured and bounded with that environment. Values that only a cluster can fill in are omitted.
func deploymentEnv() ([]string, error) {
	root, err := FindRepoRoot()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "manager", "manager.yaml"))
	if err != nil {
		return nil, err
	}
	deployment := &appsv1.Deployment{}
	if err := yaml.Unmarshal(text, deployment); err != nil {
		return nil, err
	}
	var env []string
	for _, e := range deployment.Spec.Template.Spec.Containers[0].Env {
		if e.Value != "" {
			env = append(env, e.Name+"="+e.Value)
		}
	}
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			return nil, errors.New("config/manager/manager.yaml does not set " + name)
		}
	}
	return env, nil
}
