package text

import (
	"fmt"
	"strings"
)

// JoinNames joins the first limit names for a message, and counts the others: "a, b and 3 more".
func JoinNames(names []string, limit int) string {
	return JoinSomeNames(names[:min(limit, len(names))], len(names))
}

// JoinSomeNames is JoinNames for callers that have collected only the names to show, and the number of all.
func JoinSomeNames(shown []string, total int) string {
	return strings.Join(shown, ", ") + formatRest(" ", total-len(shown))
}

// JoinMessages joins the first limit messages, and counts the others: "a; b; and 3 more".
func JoinMessages(messages []string, limit int) string {
	shown := messages[:min(limit, len(messages))]
	return strings.Join(shown, "; ") + formatRest("; ", len(messages)-len(shown))
}

// formatRest formats how many items are left out, after a separator. It is empty if there are none.
func formatRest(separator string, n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf("%sand %d more", separator, n)
}
