// Package cli is the kubectl plugin `kubectl butler-ipam`: it reads objects, has other packages decide, and
// prints. What it decides itself is how things look.
package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version"
)

// The exit codes.
const (
	// ok: done, or the answer is yes.
	ok = 0
	// no: the answer is no: the audit found something, nothing has room, an import cannot be done.
	no = 1
	// failed: it could not be found out, or what was asked makes no sense.
	failed = 2
)

// errNo ends a command with code 1 when it has printed its answer.
var errNo = errors.New("the answer is no")

// plugin is what the commands share.
type plugin struct {
	Env
	flags *genericclioptions.ConfigFlags
	// printer prints for programs; nil: a text is wanted.
	printer printers.ResourcePrinter
}

// Run runs the plugin and returns its exit code.
func Run(ctx context.Context, args []string, env Env) int {
	log.SetLogger(logr.Discard()) // a library says so where nobody sets one
	env.Out, env.ErrOut = &plain{to: env.Out, colour: env.Colour}, &plain{to: env.ErrOut, colour: env.Colour}
	p := &plugin{Env: env, flags: genericclioptions.NewConfigFlags(true)}
	root := p.root()
	root.SetArgs(args)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return ok
	case errors.Is(err, errNo):
		return no
	default:
		if missing := missingKinds(err); missing != nil {
			err = missing
		}
		fmt.Fprintln(env.ErrOut, p.red("error:"), err)
		return failed
	}
}

func (p *plugin) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-butler_ipam",
		Short: "Look at the pools, addresses and blocks of the IPAM provider Butler",
		Long: "Look at the pools, addresses and blocks of the Cluster API IPAM provider Butler, and move in from the\n" +
			"in-cluster provider or Metal3's IPAM, or take the place of the former.\n\n" +
			"Exit codes: 0 done, or yes; 1 the answer is no; 2 it failed.",
		Example:       "  kubectl butler-ipam pools -A\n  kubectl butler-ipam who 10.40.0.10\n  kubectl butler-ipam explain claim/worker-0",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl butler-ipam"},
		Version:       version.Get(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.ErrOut)
	p.flags.AddFlags(root.PersistentFlags())
	hide(root.PersistentFlags(), "cache-dir", "disable-compression", "tls-server-name", "as-uid", "certificate-authority", "client-certificate", "client-key",
		"insecure-skip-tls-verify", "password", "username", "token", "server", "as-user-extra")
	root.AddCommand(p.poolsCommand(), p.whoCommand(), p.freeCommand(), p.explainCommand(), p.waitingCommand(), p.leasesCommand(), p.auditCommand(), p.reserveCommand(), p.releaseHeldCommand(), p.importCommand(), p.dropInCommand(), p.handBackCommand())
	for _, cmd := range root.Commands() {
		p.addPrintFlags(cmd)
	}
	_ = root.RegisterFlagCompletionFunc("namespace", p.completeNamespaces)
	return root
}

// hide keeps flags that every kubectl command has, and few need, out of the help.
func hide(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		if f := flags.Lookup(name); f != nil {
			f.Hidden = true
		}
	}
}

// connectIn connects, and says in which namespace is looked: the one that is worked in, or all, which is the empty one.
func (p *plugin) connectIn(all bool) (c client.Client, namespace string, err error) {
	if c, err = p.connect(); err != nil || all {
		return c, "", err
	}
	namespace, _, err = p.namespace()
	return c, namespace, err
}

// namespace is the one that is worked in: the flag's, or the context's.
func (p *plugin) namespace() (name string, given bool, err error) {
	name, given, err = p.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", false, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return name, given && *p.flags.Namespace != "", nil
}

// noArgs wants no argument, and says what to do instead.
func noArgs(instead string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("%q: %s", args[0], instead)
		}
		return nil
	}
}

// oneArg wants exactly one argument, and says which.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		return wants(cmd, what)
	}
}

// atLeastOneArg wants an argument or more, and says what the first is.
func atLeastOneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return nil
		}
		return wants(cmd, what)
	}
}

func wants(cmd *cobra.Command, what string) error {
	use := strings.Replace(cmd.UseLine(), " [flags]", "", 1)
	return fmt.Errorf("say %s: %s\n\nExample:\n%s", what, use, cmd.Example)
}
