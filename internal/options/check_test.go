package options

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// TestDefaultFlagValues checks what the docs promise of a manager without flags.
func TestDefaultFlagValues(t *testing.T) { // B46, H15
	var o Options
	fs := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(nil); err != nil {
		t.Fatal(err)
	}
	if o.ShrinkGrace != 10*time.Minute || o.AddressAttempts != 5 {
		t.Errorf("a block stays for %v, and a Service tries %d addresses", o.ShrinkGrace, o.AddressAttempts)
	}
}

func TestCheckFlags(t *testing.T) {
	tests := map[string]struct {
		args []string
		want []string // the beginnings of the errors, in order; none: the flags are fine
	}{
		"the defaults":                       {},
		"everything turned off":              {args: []string{"--webhook-port=0", "--health-probe-bind-address=0", "--diagnostics-address=0", "--audit-interval=0"}},
		"addresses":                          {args: []string{"--health-probe-bind-address=[::1]:0", "--diagnostics-address=localhost:8443"}},
		"a part, a namespace and a label":    {args: []string{"--shard=2/3", "--namespace=team-a", "--watch-filter=mine"}},
		"leases and a namespace":             {args: []string{"--service-leases", "--namespace=team-a"}, want: []string{"--service-leases=true: cannot be with --namespace"}},
		"hosts and a namespace":              {args: []string{"--host-load-balancers", "--namespace=team-a"}, want: []string{"--host-load-balancers=true: cannot be with --namespace: the coordination Leases"}},
		"hosts and Nodes alone":              {args: []string{"--host-load-balancers", "--node-cidrs=only"}, want: []string{"--host-load-balancers=true: cannot be with --node-cidrs=only"}},
		"no attempt at an address":           {args: []string{"--address-attempts=0"}, want: []string{"--address-attempts=0: at least 1 is needed"}},
		"endpoints without a port":           {args: []string{"--control-plane-endpoints", "--webhook-port=0"}, want: []string{"--control-plane-endpoints=true: needs --webhook-port"}},
		"endpoints and Nodes alone":          {args: []string{"--control-plane-endpoints", "--node-cidrs=only"}, want: []string{"--control-plane-endpoints=true: cannot be with --node-cidrs=only"}},
		"leases and Nodes alone":             {args: []string{"--service-leases", "--node-cidrs=only"}, want: []string{"--service-leases=true: cannot be with --node-cidrs=only"}},
		"no writers":                         {args: []string{"--writers=0"}, want: []string{"--writers=0: at least 1"}},
		"fewer writers than none":            {args: []string{"--writers=-1"}, want: []string{"--writers=-1: at least 1"}},
		"no pools at once":                   {args: []string{"--pool-concurrency=0"}, want: []string{"--pool-concurrency=0: at least 1"}},
		"a part that is not there":           {args: []string{"--shard=4/3"}, want: []string{`--shard=4/3: "4/3" is not a shard`}},
		"no name of a namespace":             {args: []string{"--namespace=Foo_Bar"}, want: []string{"--namespace=Foo_Bar: is not the name of a namespace"}},
		"no namespace for the lease":         {args: []string{"--leader-elect-namespace=a b"}, want: []string{"--leader-elect-namespace=a b: is not"}},
		"no value of a label":                {args: []string{"--watch-filter=bad value!"}, want: []string{"--watch-filter=bad value!: no label can have this value"}},
		"a grace before now":                 {args: []string{"--orphan-grace=-5s"}, want: []string{"--orphan-grace=-5s: must be longer than 0"}},
		"no grace":                           {args: []string{"--orphan-grace=0"}, want: []string{"--orphan-grace=0s: must be longer than 0"}},
		"an interval before now":             {args: []string{"--audit-interval=-1s"}, want: []string{"--audit-interval=-1s: must not be negative"}},
		"a grace of blocks before now":       {args: []string{"--shrink-grace=-1s"}, want: []string{"--shrink-grace=-1s: must not be negative"}},
		"no port":                            {args: []string{"--webhook-port=99999"}, want: []string{"--webhook-port=99999: must be from 0 to 65535"}},
		"a port without a colon":             {args: []string{"--health-probe-bind-address=9440"}, want: []string{"--health-probe-bind-address=9440: write host:port"}},
		"an address without a port":          {args: []string{"--diagnostics-address=10.0.0.1"}, want: []string{"--diagnostics-address=10.0.0.1: write host:port"}},
		"a port by name":                     {args: []string{"--diagnostics-address=:https"}, want: []string{"--diagnostics-address=:https: write host:port"}},
		"a lease that no manager can keep":   {args: []string{"--leader-elect", "--leader-elect-lease-duration=10s"}, want: []string{"--leader-elect-lease-duration=10s: must be longer than --leader-elect-renew-deadline: 10s"}},
		"a lease that is tried too seldom":   {args: []string{"--leader-elect", "--leader-elect-retry-period=9s"}, want: []string{"--leader-elect-renew-deadline=10s: must be longer than"}},
		"a lease that is never tried":        {args: []string{"--leader-elect", "--leader-elect-retry-period=0"}, want: []string{"--leader-elect-retry-period=0s: must be longer than 0"}},
		"times of a lease without a manager": {args: []string{"--leader-elect-lease-duration=1s"}},
		"all at once": {args: []string{"--writers=0", "--shard=x", "--namespace=A"},
			want: []string{"--namespace=A: ", "--shard=x: ", "--writers=0: "}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			o, fs := &Options{}, pflag.NewFlagSet("manager", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			expectLines(t, o.Validate(), tt.want)
		})
	}
}

// expectLines expects an error with one line for each element of want, which the line begins with; nil means no error.
func expectLines(t *testing.T, err error, want []string) {
	t.Helper()
	var got []string
	if err != nil {
		got = strings.Split(err.Error(), "\n")
	}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
}

func TestCheckCertificate(t *testing.T) {
	o := &Options{WebhookPort: 9443, WebhookCertDir: t.TempDir()}
	if err := o.ValidateCertificate(); err == nil || !strings.Contains(err.Error(), "tls.crt") || !strings.Contains(err.Error(), "--webhook-port=0") {
		t.Errorf("without a certificate: %v", err)
	}
	o.WebhookPort = 0
	if err := o.ValidateCertificate(); err != nil {
		t.Errorf("without webhooks: %v", err)
	}
}
