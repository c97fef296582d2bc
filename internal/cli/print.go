package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
)

// addPrintFlags adds kubectl's flag --output to a command, without the format "name": the output is an answer and not
// an object.
func (p *plugin) addPrintFlags(cmd *cobra.Command) {
	flags := genericclioptions.NewPrintFlags("")
	flags.NamePrintFlags = nil
	flags.AddFlags(cmd)
	hideFlags(cmd.Flags(), "show-managed-fields", "allow-missing-template-keys", "template")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(flags.AllowedFormats(), cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if *flags.OutputFormat != "" || cmd.Flags().Changed("template") {
			p.printer, err = flags.ToPrinter()
		}
		return err
	}
}

// itemList is an answer with several items, in the form of a kubectl list.
type itemList[T any] struct {
	Items []T `json:"items"`
}

// printOutput prints value in the format of --output, or text where that flag is not set.
func (p *plugin) printOutput(value any, text func() string) error {
	if p.printer == nil {
		fmt.Fprint(p.Out, text())
		return nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("printing JSON: %w", err)
	}
	return p.printer.PrintObj(&runtime.Unknown{Raw: raw}, p.Out)
}

// printResult prints value or text as printOutput does, and ends the command with exit code 1 where the answer is no.
func (p *plugin) printResult(yes bool, value any, text func() string) error {
	if err := p.printOutput(value, text); err != nil || yes {
		return err
	}
	return errNegativeResult
}

// formatSince formats a time, and how long ago it was.
func (env Env) formatSince(t time.Time) string {
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), duration.HumanDuration(env.Now().Sub(t)))
}

// printNotes prints to the error stream which objects could not be read, besides the answer.
func (env Env) printNotes(notes []string) {
	for _, note := range notes {
		fmt.Fprintln(env.ErrOut, env.yellow("note:"), note)
	}
}
