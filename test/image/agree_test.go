package image

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// checkAgreement checks that the manifests, the Dockerfile and go.mod agree with the image on how the manager is run.
func checkAgreement(t *testing.T, c config) {
	t.Helper()
	t.Run("is run by config/manager as it says", func(t *testing.T) {
		var deployment appsv1.Deployment
		if err := yaml.UnmarshalStrict([]byte(read(t, "config/manager/manager.yaml")), &deployment); err != nil {
			t.Fatal(err)
		}
		container := deployment.Spec.Template.Spec.Containers[0]
		if diff := cmp.Diff(c.Config.Entrypoint, container.Command); diff != "" {
			t.Errorf("command (-image +Deployment):\n%s", diff)
		}
		id := func(id *int64) string { return strconv.FormatInt(*id, 10) }
		user := id(container.SecurityContext.RunAsUser) + ":" + id(container.SecurityContext.RunAsGroup)
		if user != c.Config.User {
			t.Errorf("user %s of the image is %s in the Deployment", c.Config.User, user)
		}
	})

	t.Run("is what the Dockerfile builds", func(t *testing.T) {
		dockerfile := read(t, "Dockerfile")
		_, last, _ := strings.Cut(dockerfile, "\nFROM scratch\n")
		entrypoint, err := json.Marshal(c.Config.Entrypoint)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"USER " + c.Config.User + "\n", "ENTRYPOINT " + string(entrypoint) + "\n"} {
			if !strings.Contains(last, "\n"+line) {
				t.Errorf("its last stage has no line %s", line)
			}
		}
		labels := map[string]string{}
		values := strings.NewReplacer("$VERSION", version, "$REVISION", revision)
		for _, match := range regexp.MustCompile(`(org\.\S+)="(.*)"`).FindAllStringSubmatch(last, -1) {
			labels[match[1]] = values.Replace(match[2])
		}
		if diff := cmp.Diff(c.Config.Labels, labels); diff != "" {
			t.Errorf("labels (-image +Dockerfile):\n%s", diff)
		}
		// The Makefile allows no download of another toolchain.
		series := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
		if !strings.Contains(dockerfile, " golang:"+series+" ") {
			t.Errorf("it does not build with Go %s", series)
		}
	})
}

// read returns the content of a file of the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	root, err := framework.FindRepoRoot()
	if err != nil {
		t.Fatal(err)
	}
	return string(contents(t, filepath.Join(root, path)))
}
