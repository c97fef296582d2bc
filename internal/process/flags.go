package process

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsv1 "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version"
)

// Program is a program that takes flags and no arguments.
type Program struct {
	Name string
	// AddFlags adds the flags of the program. Those of the log and of libraries are added in any case.
	AddFlags func(*pflag.FlagSet)
	// Complete, if it is set, sets flags that were not given.
	Complete func(*pflag.FlagSet) error
	// Validate returns what is wrong with the flags.
	Validate func() error
}

// Exit codes.
const (
	exitSuccess    = 0
	exitUsageError = 2
)

// ParseFlags parses the command line after the name of the program, and configures the log accordingly. run is false
// if there is nothing to run, because help or the version was requested, or a flag is invalid. Then the output is
// written already, and code is the exit code.
func (p Program) ParseFlags(args []string, out, errOut io.Writer) (run bool, code int) {
	fs := pflag.NewFlagSet(p.Name, pflag.ContinueOnError) // it prints all flags for --help, but not for an invalid flag
	fs.SetOutput(errOut)
	p.AddFlags(fs)
	logOptions := logs.NewOptions()
	logsv1.AddFlags(logOptions, fs)
	fs.AddGoFlagSet(flag.CommandLine) // flags that libraries register themselves, for example --kubeconfig
	showVersion := fs.Bool("version", false, "Print the version and exit.")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return false, exitSuccess
	case err != nil:
	case *showVersion:
		fmt.Fprintln(out, p.Name, version.Get())
		return false, exitSuccess
	case fs.NArg() > 0:
		err = fmt.Errorf("%q: %s takes flags only", fs.Arg(0), p.Name)
	case p.Complete != nil:
		err = p.Complete(fs)
	}
	if err == nil {
		err = p.Validate()
	}
	if err == nil {
		if err = logsv1.ValidateAndApply(logOptions, nil); err != nil {
			err = fmt.Errorf("logging flags: %w", err)
		}
	}
	if err != nil {
		fmt.Fprintln(errOut, err.Error()+"\n--help lists the flags")
		return false, exitUsageError
	}
	ctrl.SetLogger(WithQuietHealthChecks(klog.Background()))
	return true, exitSuccess
}
