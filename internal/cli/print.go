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

// addPrintFlags gives a command kubectl's --output, without the names: what is printed is an answer, not an object.
func (p *plugin) addPrintFlags(cmd *cobra.Command) {
	flags := genericclioptions.NewPrintFlags("")
	flags.NamePrintFlags = nil
	flags.AddFlags(cmd)
	hide(cmd.Flags(), "show-managed-fields", "allow-missing-template-keys", "template")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(flags.AllowedFormats(), cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if *flags.OutputFormat != "" || cmd.Flags().Changed("template") {
			p.printer, err = flags.ToPrinter()
		}
		return err
	}
}

// items is an answer of several, as kubectl prints them.
type items[T any] struct {
	Items []T `json:"items"`
}

// print prints a value as --output says, or as a text.
func (p *plugin) print(value any, text func() string) error {
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

// answer prints a value and text as print does, and ends the command with code 1 where the answer is no.
func (p *plugin) answer(yes bool, value any, text func() string) error {
	if err := p.print(value, text); err != nil || yes {
		return err
	}
	return errNo
}

// since writes a time, and how long ago that is.
func (p *plugin) since(t time.Time) string {
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), duration.HumanDuration(p.Now().Sub(t)))
}

// note says what could not be looked at, beside the answer.
func (p *plugin) note(notes []string) {
	for _, note := range notes {
		fmt.Fprintln(p.ErrOut, p.yellow("note:"), note)
	}
}
