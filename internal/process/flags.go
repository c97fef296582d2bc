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

// Program is one that takes flags only.
type Program struct {
	Name string
	// AddFlags adds those of the program; those of the log and of libraries come with them.
	AddFlags func(*pflag.FlagSet)
	// Complete, where set, sets flags that were not typed.
	Complete func(*pflag.FlagSet) error
	// Check says what is wrong with them.
	Check func() error
}

// The exit codes.
const (
	done    = 0
	refused = 2
)

// Start reads what was typed behind the name of the program, and has the log be as the flags say. Where there is nothing
// to run, because help or the version was asked for, or a flag is wrong, it has said so, and returns the exit code.
func (p Program) Start(args []string, out, errOut io.Writer) (run bool, code int) {
	fs := pflag.NewFlagSet(p.Name, pflag.ContinueOnError) // it prints all flags for --help, not for one that is wrong
	fs.SetOutput(errOut)
	p.AddFlags(fs)
	logOptions := logs.NewOptions()
	logsv1.AddFlags(logOptions, fs)
	fs.AddGoFlagSet(flag.CommandLine) // what libraries register on their own, --kubeconfig among them
	showVersion := fs.Bool("version", false, "Print the version and exit.")
	err := fs.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return false, done
	case err != nil:
	case *showVersion:
		fmt.Fprintln(out, p.Name, version.Get())
		return false, done
	case fs.NArg() > 0:
		err = fmt.Errorf("%q: %s takes flags only", fs.Arg(0), p.Name)
	case p.Complete != nil:
		err = p.Complete(fs)
	}
	if err == nil {
		err = p.Check()
	}
	if err == nil {
		if err = logsv1.ValidateAndApply(logOptions, nil); err != nil {
			err = fmt.Errorf("logging flags: %w", err)
		}
	}
	if err != nil {
		fmt.Fprintln(errOut, err.Error()+"\n--help lists the flags")
		return false, refused
	}
	ctrl.SetLogger(Quietly(klog.Background()))
	return true, done
}
