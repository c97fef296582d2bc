package advice

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// refusalsOf returns the messages with which the API server refuses objects by the rules of schemas and of admission
// policies, each once: two kinds may share a field.
func refusalsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var content any
			if err := yaml.Unmarshal([]byte(document), &content); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			addRefusals(content, out)
		}
	}
	return out
}

func addRefusals(content any, out map[string]bool) {
	switch content := content.(type) {
	case []any:
		for _, x := range content {
			addRefusals(x, out)
		}
	case map[string]any:
		if text := refusalOf(content); text != "" {
			out[text] = true
		}
		for _, x := range content {
			addRefusals(x, out)
		}
	}
}

// literal matches a string in a CEL expression.
var literal = regexp.MustCompile(`'([^']*)'`)

// refusalOf returns the message of a rule, with a verb for each part that an expression adds; it is empty if content
// is not a rule.
func refusalOf(content map[string]any) string {
	_, ofSchema := content["rule"].(string)
	_, ofPolicy := content["expression"].(string)
	if !ofSchema && !ofPolicy {
		return ""
	}
	if message, ok := content["message"].(string); ok {
		return message
	}
	expression, _ := content["messageExpression"].(string)
	var texts []string
	for _, m := range literal.FindAllStringSubmatch(expression, -1) {
		if strings.Contains(m[1], " ") {
			texts = append(texts, m[1])
		}
	}
	return strings.Join(texts, "%s")
}

func TestRefusalsAreRead(t *testing.T) {
	root := framework.RepoRootForTest(t)
	for dir, want := range map[string][]string{
		"config/crd/bases": {
			"is immutable: create another IPAllocation under another name, and delete this one if it is not needed any more",
			" is outside the subnet %s; a gateway is %san address of its own subnet, or link-local (fe80::/10)%san address of its own subnet",
		},
		"config/policy": {"the label butler.butlerlabs.dev/leased is written by the IPAM manager; remove it, and name a lease in the annotation butler.butlerlabs.dev/lease"},
	} {
		all := refusalsOf(t, filepath.Join(root, filepath.FromSlash(dir)))
		for _, text := range want {
			if !all[text] {
				t.Errorf("%s: %q is not among %d texts", dir, text, len(all))
			}
		}
	}
}
