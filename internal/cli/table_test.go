package cli

import (
	"strings"
	"testing"
)

func TestBar(t *testing.T) {
	for name, c := range map[string]struct {
		percent        int
		ascii, unicode string
	}{
		"nothing":                   {0, "[----------]   0%", "          ▏  0%"},
		"something is not nothing":  {1, "[#---------]   1%", "▏         ▏  1%"},
		"a part of a character":     {23, "[##--------]  23%", "██▎       ▏ 23%"},
		"half":                      {50, "[#####-----]  50%", "█████     ▏ 50%"},
		"less than all is not full": {99, "[#########-]  99%", "█████████▉▏ 99%"},
		"all":                       {100, "[##########] 100%", "██████████▏100%"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := bar(c.percent, false); got != c.ascii {
				t.Errorf("%q, want %q", got, c.ascii)
			}
			if got := bar(c.percent, true); got != c.unicode {
				t.Errorf("%q, want %q", got, c.unicode)
			}
		})
	}
}

// Colour takes no room, and is there only where it is wanted.
func TestColour(t *testing.T) {
	rows := func(e Env) string {
		tab := &table{}
		tab.add("NAME", "READY", "X")
		tab.add("a", cell{"True", e.green}, 1)
		return tab.String()
	}
	plain, coloured := rows(Env{}), rows(Env{Colour: true})
	if want := "NAME  READY  X\na     True   1\n"; plain != want {
		t.Errorf("%q, want %q", plain, want)
	}
	if want := "NAME  READY  X\na     \x1b[32mTrue\x1b[0m   1\n"; coloured != want {
		t.Errorf("%q, want %q", coloured, want)
	}
	if strings.Contains(plain, "\x1b") {
		t.Error("colour where there is no terminal")
	}
}
