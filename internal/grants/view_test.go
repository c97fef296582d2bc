package grants_test

import (
	"strings"
	"testing"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/grantstest"
)

// BenchmarkUsersMessage measures the message that names the claims that keep a deleted pool, at each reconcile of a
// pool that 100,000 claims keep.
func BenchmarkUsersMessage(b *testing.B) {
	p := grantstest.NewPoolWithClaims(b, 100_000)
	for b.Loop() {
		if !strings.HasSuffix(p.Status.DeletionMessage(), ": ns/claim-0, ns/claim-1, ns/claim-2 and 99997 more") {
			b.Fatal(p.Status.DeletionMessage())
		}
	}
}
