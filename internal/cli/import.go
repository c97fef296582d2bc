package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/incluster"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/migrate"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

// importFlags holds the flags of the command `import`.
type importFlags struct {
	apply, rollback, forget, withoutCluster bool
	targetName, journalNamespace            string
}

func (p *plugin) importCommand() *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import POOL",
		Short: "Take a pool over from the in-cluster provider or from Metal3's IPAM, without changing one address",
		Long: "Turn an InClusterIPPool of the namespace (NAME), a GlobalInClusterIPPool (global/NAME) or an IPPool of Metal3 (ippool/NAME),\n" +
			"and what claims of it have, into those of this provider, without changing an address. Prints the plan and writes nothing,\n" +
			"unless --apply is given. Read docs/migration.md.",
		Example: "  kubectl butler-ipam import machines -n team-a\n  kubectl butler-ipam import machines -n team-a --apply\n" +
			"  kubectl butler-ipam import global/shared --rollback\n  kubectl butler-ipam import ippool/provisioning -n metal3",
		Args:              exactlyOneArg("which pool"),
		ValidArgsFunction: p.completeImportSources,
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := p.parseImportSource(args[0])
			if err != nil {
				return err
			}
			c, err := p.connectToCluster()
			if err != nil {
				return err
			}
			m := &migrate.Import{
				Client: c, Source: source, TargetName: f.targetName, JournalNamespace: cmp.Or(f.journalNamespace, source.Namespace, "default"), WithoutCluster: f.withoutCluster,
				Reportf: func(format string, args ...any) { fmt.Fprintf(p.ErrOut, format+"\n", args...) },
			}
			return p.runImport(cmd.Context(), m, f)
		},
	}
	cmd.Flags().BoolVar(&f.apply, "apply", false, "Run the import, or resume one that has begun.")
	cmd.Flags().BoolVar(&f.rollback, "rollback", false, "Undo an import, finished or not.")
	cmd.Flags().BoolVar(&f.forget, "forget", false, "Remove the journal of an import that is done, and with it the way back.")
	cmd.MarkFlagsMutuallyExclusive("apply", "rollback", "forget")
	cmd.Flags().BoolVar(&f.withoutCluster, "without-cluster", false, "Also import claims that name no Cluster, for which nothing can be paused.")
	cmd.Flags().StringVar(&f.targetName, "to", "", "The name of the new pool; that of the old one if empty.")
	cmd.Flags().StringVar(&f.journalNamespace, "journal-namespace", "", "Namespace of the journal; if empty, the namespace of the pool, or default for a global pool.")
	return cmd
}

// parseImportSource parses the name of a pool of another provider.
func (p *plugin) parseImportSource(arg string) (migrate.Source, error) {
	namespace, _, err := p.currentNamespace()
	if err != nil {
		return migrate.Source{}, err
	}
	kind, name, typed := strings.Cut(arg, "/")
	if !typed {
		kind, name = "inclusterippool", arg
	}
	switch kind = strings.ToLower(kind); {
	case name == "" || strings.Contains(name, "/"):
	case kind == "inclusterippool" || kind == "inclusterippools":
		return migrate.Source{Kind: incluster.IPPoolKind, Namespace: namespace, Name: name}, nil
	case kind == "global" || kind == "globalinclusterippool" || kind == "globalinclusterippools":
		return migrate.Source{Kind: incluster.GlobalIPPoolKind, Name: name}, nil
	case kind == "ippool" || kind == "ippools" || kind == "m3ippool" || kind == "metal3ippool":
		return migrate.Source{Kind: migrate.Metal3IPPoolKind, Namespace: namespace, Name: name}, nil
	}
	return migrate.Source{}, fmt.Errorf("%q is no pool that can be imported: write NAME or global/NAME for one of the in-cluster provider, ippool/NAME for one of Metal3", arg)
}

func (p *plugin) runImport(ctx context.Context, m *migrate.Import, f importFlags) error {
	switch {
	case f.rollback:
		if err := m.Rollback(ctx); err != nil {
			return err
		}
		_, back := m.Source.NextSteps()
		return p.printImportResult(m, nil, "RolledBack", back, fmt.Sprintf("%s is as it was. %s\n", m.Source, back))
	case f.forget:
		if err := m.DeleteJournal(ctx); err != nil {
			return err
		}
		return p.printImportResult(m, nil, "Forgotten", "", "")
	case f.apply:
		plan, err := m.Apply(ctx)
		if errors.Is(err, migrate.ErrProblems) {
			return p.printResult(false, plan, func() string { return p.formatImportPlan(plan) })
		}
		if err != nil {
			return err
		}
		imported, _ := m.Source.NextSteps()
		return p.printImportResult(m, plan, "Imported", imported, fmt.Sprintf("%s is imported. %s\n", m.Source, imported))
	}
	phase, err := m.CurrentPhase(ctx)
	if err != nil {
		return err
	}
	if phase != "" {
		const next = "--apply resumes it, --rollback undoes it, and --forget removes the journal of a finished one."
		return p.printImportResult(m, nil, phase, next, fmt.Sprintf("The import of %s has begun and is now %s. %s\n", m.Source, phase, next))
	}
	plan, err := m.Plan(ctx)
	if err != nil {
		return err
	}
	return p.printResult(len(plan.Problems) == 0, plan, func() string { return p.formatImportPlan(plan) })
}

// importResult is the progress of an import, with the plan where one was made.
type importResult struct {
	*migrate.Plan

	Source string `json:"source"`
	// Phase is the phase of the journal, or the outcome of the command.
	Phase    string `json:"phase"`
	NextStep string `json:"next,omitempty"`
}

// printImportResult prints the progress of an import.
func (p *plugin) printImportResult(m *migrate.Import, plan *migrate.Plan, phase, next, text string) error {
	return p.printOutput(importResult{Plan: plan, Source: m.Source.String(), Phase: phase, NextStep: next}, func() string { return text })
}

func (env Env) formatImportPlan(plan *migrate.Plan) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s becomes %s:\n", plan.Source, env.bold(plan.Target))
	if plan.Spec != nil {
		spec, err := yaml.Marshal(plan.Spec)
		if err != nil {
			spec = []byte(err.Error())
		}
		for line := range strings.Lines(string(spec)) {
			out.WriteString("  " + line)
		}
	}
	for _, note := range plan.Notes {
		fmt.Fprintln(&out, env.yellow("note:"), note)
	}
	t := &table{}
	for _, c := range plan.Claims {
		address := c.Address
		if address == "" {
			address = "(waits)"
		}
		t.addRow("  "+c.Claim, address, c.Cluster)
	}
	fmt.Fprintf(&out, "%s %s:\n%s", text.FormatCount(len(plan.Claims), "claim is", "claims are"), plan.ClaimsOutcome, t)
	if len(plan.Problems) == 0 {
		fmt.Fprintln(&out, env.green("There are no obstacles.")+" Nothing has been written yet: run again with --apply.")
		return out.String()
	}
	fmt.Fprintln(&out, env.red("Obstacles:"))
	for _, problem := range plan.Problems {
		fmt.Fprintf(&out, "  %s\n    to do: %s\n", problem.Message, problem.Advice)
	}
	return out.String()
}
