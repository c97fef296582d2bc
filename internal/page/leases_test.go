package page

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/ledger"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/fleet"
)

// rented are pools of which two give leases, and one has given some.
type rented struct{}

var (
	public    = pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "public"}
	private   = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "team-a", Name: "private"}
	withdrawn = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "team-a", Name: "withdrawn"}
)

func (rented) LeaseUsage(namespace string) []grants.LeaseUsage {
	used := map[string]int64{"team-a": 2, "team-b": 5}[namespace]
	return []grants.LeaseUsage{
		{Key: public, Gives: true, Counts: ledger.Counts{Total: 28, Allocated: 9, Available: 17}, Resting: 2, Waiting: 1, Quota: ptr.To[int32](4), Used: used},
		{Key: private, Gives: true, Counts: ledger.Counts{Total: 14, Available: 14}},
		{Key: withdrawn, Counts: ledger.Counts{Total: 14, Allocated: 1, Available: 13}},
	}
}

func (rented) Walk(pool pools.Key, _ netip.Addr, visit func(grants.Entry) bool) {
	a := netip.MustParseAddr("203.0.113.7")
	if pool == public {
		_ = visit(grants.Entry{Range: netipx.IPRangeFrom(a, a), Use: grants.UseLease, Kind: "IPLease", Namespace: "team-a", Name: "shop", Since: fleet.Noon, Ports: []string{"TCP/80 web"}}) &&
			visit(grants.Entry{Range: netipx.IPRangeFrom(a.Next(), a.Next()), Kind: "IPAddressClaim", Namespace: "team-a", Name: "machine"}) &&
			visit(grants.Entry{Range: netipx.IPRangeFrom(a.Prev(), a.Prev()), Use: grants.UseLease, Kind: "IPLease", Namespace: "team-b", Name: "shop", Since: fleet.Noon})
	}
}

func (rented) Waiting(pool pools.Key, visit func(grants.Waiter) bool) {
	if pool == public {
		_ = visit(grants.Waiter{Kind: "IPAddressClaim", Namespace: "team-a", Name: "machine"}) &&
			visit(grants.Waiter{Kind: "IPLease", Namespace: "team-b", Name: "late", Since: fleet.Noon, Reason: "PoolExhausted", Message: "full"})
	}
}

// A12: programs are told what there is of leases, and 503 while that is not known.
func TestLeases(t *testing.T) {
	elected := make(chan struct{})
	close(elected)
	unixText := strconv.FormatInt(fleet.Noon.Unix(), 10)
	const line = `{"kind":"GlobalNetworkPool","name":"public","total":28,"inUse":9,"available":17,"resting":2,"waiting":1`
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"usage":                              {200, `{"pools":[` + line + `},{"kind":"NetworkPool","poolNamespace":"team-a","name":"private","total":14,"inUse":0,"available":14,"resting":0,"waiting":0}]}`},
		"usage?pool=public&namespace=team-a": {200, `{"pools":[` + line + `,"namespace":{"name":"team-a","used":2,"quota":4,"left":2}}]}`},
		"usage?pool=public&namespace=team-b": {200, `{"pools":[` + line + `,"namespace":{"name":"team-b","used":5,"quota":4,"left":0}}]}`},
		"usage?pool=private&namespace=n":     {200, `{"pools":[{"kind":"NetworkPool","poolNamespace":"team-a","name":"private","total":14,"inUse":0,"available":14,"resting":0,"waiting":0,"namespace":{"name":"n","used":0}}]}`},
		"usage?pool=withdrawn":               {404, `{"error":"there is no pool of this name that gives leases, or this manager does not know it"}`},
		"state?namespace=team-a":             {200, `{"leases":[{"namespace":"team-a","name":"shop","pool":"public","address":"203.0.113.7","ports":["TCP/80 web"],"since":` + unixText + `}]}`},
		"state?namespace=nobody":             {200, `{"leases":[]}`},
		"waiting":                            {200, `{"leases":[{"namespace":"team-b","name":"late","pool":"public","since":` + unixText + `,"reason":"PoolExhausted","message":"full"}]}`},
		"waiting?namespace=team-a":           {200, `{"leases":[]}`},
		"health":                             {200, `{"status":"ok"}`},
		"nothing":                            {404, "404 page not found"},
	} {
		h := (&Leases{Pools: rented{}, Elected: elected, Ready: func(context.Context) error { return nil }}).Handler()
		expectAnswer(t, h, path, want.code, want.text)
	}
	unread := (&Leases{Pools: rented{}, Elected: elected, Ready: func(context.Context) error { return errors.New("the claims are not read yet") }}).Handler()
	follows := (&Leases{Pools: rented{}, Elected: make(chan struct{}), Ready: func(context.Context) error { return nil }}).Handler()
	for _, path := range []string{"usage", "state", "waiting", "health"} {
		expectAnswer(t, unread, path, http.StatusServiceUnavailable, `{"error":"the claims are not read yet"}`)
		expectAnswer(t, follows, path, http.StatusServiceUnavailable, `{"error":"this manager does not lead; ask the one that does"}`)
	}
}

func expectAnswer(t *testing.T, h http.Handler, path string, code int, text string) {
	t.Helper()
	resp := ask(t, h, LeasesPath+path)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != code || strings.TrimSpace(string(got)) != text {
		t.Errorf("%s: %d %s %v\nwant %d %s", path, resp.StatusCode, got, err, code, text)
	}
}
