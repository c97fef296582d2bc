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

// importFlags are what `import` can be told.
type importFlags struct {
	apply, rollback, forget, withoutCluster bool
	to, journalNamespace                    string
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
		Args:              oneArg("which pool"),
		ValidArgsFunction: p.completeSources,
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := p.source(args[0])
			if err != nil {
				return err
			}
			c, err := p.connect()
			if err != nil {
				return err
			}
			m := &migrate.Move{
				Client: c, Source: source, To: f.to, JournalNamespace: cmp.Or(f.journalNamespace, source.Namespace, "default"), WithoutCluster: f.withoutCluster,
				Say: func(format string, args ...any) { fmt.Fprintf(p.ErrOut, format+"\n", args...) },
			}
			return p.runImport(cmd.Context(), m, f)
		},
	}
	cmd.Flags().BoolVar(&f.apply, "apply", false, "Run the import, or resume one that has begun.")
	cmd.Flags().BoolVar(&f.rollback, "rollback", false, "Undo an import, finished or not.")
	cmd.Flags().BoolVar(&f.forget, "forget", false, "Remove the journal of an import that is done, and with it the way back.")
	cmd.MarkFlagsMutuallyExclusive("apply", "rollback", "forget")
	cmd.Flags().BoolVar(&f.withoutCluster, "without-cluster", false, "Also import claims that name no Cluster, for which nothing can be paused.")
	cmd.Flags().StringVar(&f.to, "to", "", "The name of the new pool; that of the old one if empty.")
	cmd.Flags().StringVar(&f.journalNamespace, "journal-namespace", "", "Namespace of the journal; if empty, the namespace of the pool, or default for a global pool.")
	return cmd
}

// source reads the name of a pool of another provider.
func (p *plugin) source(arg string) (migrate.Source, error) {
	namespace, _, err := p.namespace()
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
		return migrate.Source{Kind: incluster.IPPool, Namespace: namespace, Name: name}, nil
	case kind == "global" || kind == "globalinclusterippool" || kind == "globalinclusterippools":
		return migrate.Source{Kind: incluster.GlobalIPPool, Name: name}, nil
	case kind == "ippool" || kind == "ippools" || kind == "m3ippool" || kind == "metal3ippool":
		return migrate.Source{Kind: migrate.Metal3IPPool, Namespace: namespace, Name: name}, nil
	}
	return migrate.Source{}, fmt.Errorf("%q is no pool that can be imported: write NAME or global/NAME for one of the in-cluster provider, ippool/NAME for one of Metal3", arg)
}

func (p *plugin) runImport(ctx context.Context, m *migrate.Move, f importFlags) error {
	switch {
	case f.rollback:
		if err := m.Rollback(ctx); err != nil {
			return err
		}
		_, back := m.Source.Next()
		return p.importDone(m, nil, "RolledBack", back, fmt.Sprintf("%s is as it was. %s\n", m.Source, back))
	case f.forget:
		if err := m.Forget(ctx); err != nil {
			return err
		}
		return p.importDone(m, nil, "Forgotten", "", "")
	case f.apply:
		plan, err := m.Apply(ctx)
		if errors.Is(err, migrate.ErrProblems) {
			return p.answer(false, plan, func() string { return p.planText(plan) })
		}
		if err != nil {
			return err
		}
		imported, _ := m.Source.Next()
		return p.importDone(m, plan, "Imported", imported, fmt.Sprintf("%s is imported. %s\n", m.Source, imported))
	}
	phase, err := m.Status(ctx)
	if err != nil {
		return err
	}
	if phase != "" {
		const next = "--apply resumes it, --rollback undoes it, and --forget removes the journal of a finished one."
		return p.importDone(m, nil, phase, next, fmt.Sprintf("The import of %s has begun and is now %s. %s\n", m.Source, phase, next))
	}
	plan, err := m.Plan(ctx)
	if err != nil {
		return err
	}
	return p.answer(len(plan.Problems) == 0, plan, func() string { return p.planText(plan) })
}

// importAnswer is how far an import is. It has the plan where one was made.
type importAnswer struct {
	*migrate.Plan

	Source string `json:"source"`
	// Phase is that of the journal, or what became of it.
	Phase string `json:"phase"`
	Next  string `json:"next,omitempty"`
}

// importDone prints how far an import is.
func (p *plugin) importDone(m *migrate.Move, plan *migrate.Plan, phase, next, text string) error {
	return p.print(importAnswer{Plan: plan, Source: m.Source.String(), Phase: phase, Next: next}, func() string { return text })
}

func (p *plugin) planText(plan *migrate.Plan) string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s becomes %s:\n", plan.Source, p.bold(plan.Target))
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
		fmt.Fprintln(&out, p.yellow("note:"), note)
	}
	t := &table{}
	for _, c := range plan.Claims {
		address := c.Address
		if address == "" {
			address = "(waits)"
		}
		t.add("  "+c.Claim, address, c.Cluster)
	}
	fmt.Fprintf(&out, "%s %s:\n%s", text.Count(len(plan.Claims), "claim is", "claims are"), plan.Becomes, t)
	if len(plan.Problems) == 0 {
		fmt.Fprintln(&out, p.green("Nothing is in the way.")+" Nothing has been written yet: run again with --apply.")
		return out.String()
	}
	fmt.Fprintln(&out, p.red("In the way:"))
	for _, problem := range plan.Problems {
		fmt.Fprintf(&out, "  %s\n    to do: %s\n", problem.What, problem.Do)
	}
	return out.String()
}
