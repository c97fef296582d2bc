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

// Env is the environment of the plugin: its streams, the abilities of its terminal, and its clock.
type Env struct {
	genericiooptions.IOStreams
	// Colour and Unicode report what the output can show.
	Colour, Unicode bool
	// Now returns the current time.
	Now func() time.Time
}

// EnvFromProcess returns the environment of this process. Colour is set only on a terminal, and not where NO_COLOR is
// set (no-color.org); Unicode is set on a terminal whose locale is UTF-8.
func EnvFromProcess() Env {
	terminal := term.IsTerminal(int(os.Stdout.Fd()))
	locale := strings.ToLower(cmp.Or(os.Getenv("LC_ALL"), os.Getenv("LC_CTYPE"), os.Getenv("LANG")))
	return Env{
		IOStreams: genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
		Colour:    terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		Unicode:   terminal && (strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")),
		Now:       time.Now,
	}
}

// EnvFromStreams returns an environment without a terminal, for example for tests.
func EnvFromStreams(in io.Reader, out, errOut io.Writer, now func() time.Time) Env {
	return Env{IOStreams: genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut}, Now: now}
}

func (env Env) colourText(code, text string) string {
	if !env.Colour {
		return text
	}
	return escapeSequence(code) + sanitizeLine(text) + escapeSequence(codeReset)
}

func (env Env) red(text string) string    { return env.colourText(codeRed, text) }
func (env Env) green(text string) string  { return env.colourText(codeGreen, text) }
func (env Env) yellow(text string) string { return env.colourText(codeYellow, text) }
func (env Env) bold(text string) string   { return env.colourText(codeBold, text) }
