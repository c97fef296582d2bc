package options

import (
	"testing"

	"github.com/spf13/pflag"
)

func TestFromEnvironment(t *testing.T) {
	for name, c := range map[string]struct {
		args, environ []string
		want          []string
		on            bool
	}{
		"nothing":                         {environ: []string{"PATH=/bin", "BUTLER_IPAM_LOAD_BALANCERS=true"}},
		"a component":                     {environ: []string{"BUTLER_IPAM_FLAG_load-balancers=true"}, on: true},
		"the command line counts more":    {args: []string{"--load-balancers=false"}, environ: []string{"BUTLER_IPAM_FLAG_load-balancers=true"}},
		"a flag that there is not":        {environ: []string{"BUTLER_IPAM_FLAG_loadbalancers=true"}, want: []string{"BUTLER_IPAM_FLAG_loadbalancers: there is no flag --loadbalancers"}},
		"a value that it cannot have":     {environ: []string{"BUTLER_IPAM_FLAG_writers=many"}, want: []string{`BUTLER_IPAM_FLAG_writers: invalid argument "many" for "--writers" flag`}},
		"two that are wrong are reported": {environ: []string{"BUTLER_IPAM_FLAG_a=1", "BUTLER_IPAM_FLAG_b=1"}, want: []string{"BUTLER_IPAM_FLAG_a: ", "BUTLER_IPAM_FLAG_b: "}},
		"one right, one wrong, in turn":   {environ: []string{"BUTLER_IPAM_FLAG_a=1", "BUTLER_IPAM_FLAG_load-balancers=true"}, want: []string{"BUTLER_IPAM_FLAG_a: "}, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, fs := &Options{}, pflag.NewFlagSet("manager", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			expectLines(t, ApplyEnvironment(fs, c.environ), c.want)
			if o.LoadBalancers != c.on {
				t.Errorf("--load-balancers=%t", o.LoadBalancers)
			}
		})
	}
}
