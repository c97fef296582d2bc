package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/version"
)

// Run runs the plugin with the given arguments and returns its exit code.
func Run(ctx context.Context, args []string, env Env) int {
	log.SetLogger(logr.Discard()) // controller-runtime prints a warning where no logger is set
	env.Out, env.ErrOut = &sanitizingWriter{out: env.Out, allowColour: env.Colour}, &sanitizingWriter{out: env.ErrOut, allowColour: env.Colour}
	p := &plugin{Env: env, flags: genericclioptions.NewConfigFlags(true)}
	root := p.rootCommand()
	root.SetArgs(args)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return exitOK
	case errors.Is(err, errNegativeResult):
		return exitNegative
	default:
		if missing := newMissingKindsError(err); missing != nil {
			err = missing
		}
		fmt.Fprintln(env.ErrOut, p.red("error:"), err)
		return exitFailed
	}
}

func (p *plugin) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-butler_ipam",
		Short: "Look at the pools, addresses and blocks of the IPAM provider Butler",
		Long: "Look at the pools, addresses and blocks of the Cluster API IPAM provider Butler, and import from the\n" +
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
	hideFlags(root.PersistentFlags(), "cache-dir", "disable-compression", "tls-server-name", "as-uid", "certificate-authority", "client-certificate", "client-key",
		"insecure-skip-tls-verify", "password", "username", "token", "server", "as-user-extra")
	root.AddCommand(p.poolsCommand(), p.whoCommand(), p.freeCommand(), p.explainCommand(), p.waitingCommand(), p.leasesCommand(), p.auditCommand(), p.reserveCommand(), p.releaseHeldCommand(), p.importCommand(), p.dropInCommand(), p.handBackCommand())
	for _, cmd := range root.Commands() {
		p.addPrintFlags(cmd)
	}
	_ = root.RegisterFlagCompletionFunc("namespace", p.completeNamespaces)
	return root
}
