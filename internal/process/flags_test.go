package process

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	logsv1 "k8s.io/component-base/logs/api/v1"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version"
)

func TestParseFlags(t *testing.T) {
	const hint = "\n--help lists the flags\n"
	for name, tc := range map[string]struct {
		args        []string
		wrong       error
		run         bool
		code        int
		out, errOut string
	}{
		"nothing":             {run: true},
		"a flag":              {args: []string{"--size=3"}, run: true},
		"the version":         {args: []string{"--version"}, out: "crane " + version.Get() + "\n"},
		"the version first":   {args: []string{"--version"}, wrong: errors.New("--size=1: at least 2"), out: "crane " + version.Get() + "\n"},
		"an unknown flag":     {args: []string{"--sise=3"}, code: 2, errOut: "unknown flag: --sise" + hint},
		"a stray argument":    {args: []string{"--size=3", "lift"}, code: 2, errOut: `"lift": crane takes flags only` + hint},
		"a flag out of range": {args: []string{"--size=1"}, wrong: errors.New("--size=1: at least 2"), code: 2, errOut: "--size=1: at least 2" + hint},
		"a log of no format":  {args: []string{"--logging-format=verse"}, code: 2, errOut: `logging flags: format: Invalid value: "verse"`},
		"a log for programs":  {args: []string{"--logging-format=json"}, run: true},
		"a log that is known": {args: []string{"--logging-format=text", "-v=2"}, run: true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := logsv1.ResetForTest(nil); err != nil {
				t.Fatal(err)
			}
			var size int
			crane := Program{
				Name:     "crane",
				AddFlags: func(fs *pflag.FlagSet) { fs.IntVar(&size, "size", 3, "Its size.") },
				Validate: func() error { return tc.wrong },
			}
			var out, errOut strings.Builder
			run, code := crane.ParseFlags(tc.args, &out, &errOut)
			if run != tc.run || code != tc.code {
				t.Errorf("run %t, code %d", run, code)
			}
			if out.String() != tc.out || !strings.HasPrefix(errOut.String(), tc.errOut) || (tc.errOut == "" && errOut.String() != "") {
				t.Errorf("it printed %q and %q", out.String(), errOut.String())
			}
		})
	}

	t.Run("help", func(t *testing.T) {
		var out, errOut strings.Builder
		crane := Program{Name: "crane", AddFlags: func(*pflag.FlagSet) {}}
		if run, code := crane.ParseFlags([]string{"--help"}, &out, &errOut); run || code != 0 {
			t.Errorf("run %t, code %d", run, code)
		}
		for _, want := range []string{"Usage of crane:", "--version", "--logging-format", "--kubeconfig"} {
			if !strings.Contains(errOut.String(), want) {
				t.Errorf("it has no %s: %s", want, errOut.String())
			}
		}
	})
}
