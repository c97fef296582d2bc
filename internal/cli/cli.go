// Package cli implements the kubectl plugin `kubectl butler-ipam`: it reads objects, leaves decisions to other
// packages, and prints. The package itself decides the presentation alone.
package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The exit codes of the plugin.
const (
	// exitOK: the command is done, or the answer is yes.
	exitOK = 0
	// exitNegative: the answer is no: the audit has findings, nothing has room, or an import cannot be done.
	exitNegative = 1
	// exitFailed: the answer could not be determined, or the arguments are invalid.
	exitFailed = 2
)

// errNegativeResult ends a command with exit code 1 after it has printed its answer.
var errNegativeResult = errors.New("the answer is no")

// plugin holds the state that all commands share.
type plugin struct {
	Env
	flags *genericclioptions.ConfigFlags
	// printer prints machine-readable output; nil for plain text.
	printer printers.ResourcePrinter
}

// hideFlags hides flags that every kubectl command has, and few users need, from the help.
func hideFlags(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if f := flags.Lookup(name); f != nil {
			f.Hidden = true
		}
	}
}

// connectToNamespace connects to the cluster and returns the namespace to read: the current one, or all namespaces
// ("").
func (p *plugin) connectToNamespace(all bool) (c client.Client, namespace string, err error) {
	if c, err = p.connectToCluster(); err != nil || all {
		return c, "", err
	}
	namespace, _, err = p.currentNamespace()
	return c, namespace, err
}

// currentNamespace returns the namespace of the flag --namespace, or else that of the kubeconfig's context. explicit
// reports whether the flag is set.
func (p *plugin) currentNamespace() (name string, explicit bool, err error) {
	name, explicit, err = p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", false, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return name, explicit && *p.flags.Namespace != "", nil
}

// noArgs rejects arguments; the error names the alternative.
func noArgs(instead string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%q: %s", args[0], instead)
		}
		return nil
	}
}

// exactlyOneArg requires exactly one argument; the error names the argument.
func exactlyOneArg(argument string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return newMissingArgError(cmd, argument)
	}
}

// atLeastOneArg requires one argument or more; the error names the first one.
func atLeastOneArg(argument string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		return newMissingArgError(cmd, argument)
	}
}

func newMissingArgError(cmd *cobra.Command, argument string) error {
	use := strings.Replace(cmd.UseLine(), " [flags]", "", 1)
	return fmt.Errorf("say %s: %s\n\nExample:\n%s", argument, use, cmd.Example)
}
