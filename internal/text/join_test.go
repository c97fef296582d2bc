package text

import "testing"

func TestJoin(t *testing.T) {
	three := []string{"a", "b", "c"}
	for name, c := range map[string]struct{ got, want string }{
		"no names":                {JoinNames(nil, 2), ""},
		"as many names as fit":    {JoinNames(three, 3), "a, b, c"},
		"one name too many":       {JoinNames(three, 2), "a, b and 1 more"},
		"all names are given":     {JoinSomeNames(three, 3), "a, b, c"},
		"some names are given":    {JoinSomeNames(three, 12), "a, b, c and 9 more"},
		"no messages":             {JoinMessages(nil, 2), ""},
		"as many messages as fit": {JoinMessages(three, 3), "a; b; c"},
		"too many messages":       {JoinMessages(three, 1), "a; and 2 more"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
	}
}
