package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// print prints a value as --output says, or as a text.
func (p *plugin) print(value any, text func() string) error {
	switch p.output {
	case "json":
		out, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return fmt.Errorf("printing JSON: %w", err)
		}
		fmt.Fprintln(p.Out, string(out))
	case "yaml":
		out, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("printing YAML: %w", err)
		}
		fmt.Fprint(p.Out, string(out))
	default:
		fmt.Fprint(p.Out, text())
	}
	return nil
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
