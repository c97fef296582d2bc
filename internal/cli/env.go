package cli

import (
	"cmp"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Env is what surrounds the plugin.
type Env struct {
	genericiooptions.IOStreams
	// Colour and Unicode say what the output can show.
	Colour, Unicode bool
	// Now is the clock.
	Now func() time.Time
}

// FromProcess is the environment of this process: colour on a terminal alone, and not where NO_COLOR is set
// (no-color.org); Unicode on a terminal whose locale has it.
func FromProcess() Env {
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return Env{
		IOStreams: genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		Colour:    terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Unicode:   terminal && (strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")),
		Now:       time.Now,
	}
}

// Streams is an environment without a terminal.
func Streams(in io.Reader, out, errOut io.Writer, now func() time.Time) Env {
	return Env{IOStreams: genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut}, Now: now}
}

func (e Env) paint(code, text string) string {
	if !e.Colour {
		return text
	}
	return escape(code) + word(text) + escape(reset)
}

func (e Env) red(text string) string    { return e.paint(red, text) }
func (e Env) green(text string) string  { return e.paint(green, text) }
func (e Env) yellow(text string) string { return e.paint(yellow, text) }
func (e Env) bold(text string) string   { return e.paint(bold, text) }
