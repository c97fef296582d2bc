package cli

import (
	"testing"

	"github.com/spf13/pflag"
)

// TestNamespaceOrCount checks that -n sets the namespace, the count, or both in any order.
func TestNamespaceOrCount(t *testing.T) {
	for name, c := range map[string]struct {
		args      []string
		namespace string
		number    int64 // 0 for no count
	}{
		"none":                          {},
		"a namespace":                   {args: []string{"-n", "team"}, namespace: "team"},
		"a count":                       {args: []string{"-n", "4"}, number: 4},
		"a count and a namespace":       {args: []string{"-n", "4", "--namespace", "team"}, namespace: "team", number: 4},
		"a namespace and a count":       {args: []string{"--namespace=team", "-n", "4"}, namespace: "team", number: 4},
		"both by the same letter":       {args: []string{"-n4", "-nteam"}, namespace: "team", number: 4},
		"a count that makes no sense":   {args: []string{"-n", "-1"}, number: -1},
		"a namespace that has a number": {args: []string{"-n", "team-4"}, namespace: "team-4"},
	} {
		t.Run(name, func(t *testing.T) {
			namespace := ""
			f := &namespaceOrCount{namespace: &namespace}
			fs := pflag.NewFlagSet("free", pflag.ContinueOnError)
			fs.VarP(f, "namespace", "n", "")
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			got := int64(0)
			if f.number != nil {
				got = *f.number
			}
			if namespace != c.namespace || got != c.number {
				t.Errorf("namespace %q and count %d, want %q and %d", namespace, got, c.namespace, c.number)
			}
		})
	}
}
