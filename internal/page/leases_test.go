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

// fakeLeasePools is a LeasePoolSource in which two pools serve leases, and one of them has granted some.
type fakeLeasePools struct{}

var (
	public    = pools.Key{Kind: v1alpha1.GlobalNetworkPoolKind, Name: "public"}
	private   = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "team-a", Name: "private"}
	withdrawn = pools.Key{Kind: v1alpha1.NetworkPoolKind, Namespace: "team-a", Name: "withdrawn"}
)

func (fakeLeasePools) LeaseUsage(namespace string) []grants.LeaseUsage {
	used := map[string]int64{"team-a": 2, "team-b": 5}[namespace]
	return []grants.LeaseUsage{
		{Key: public, LeasesEnabled: true, Counts: ledger.Counts{Total: 28, Allocated: 9, Available: 17}, CoolingAddresses: 2, WaitingLeases: 1, NamespaceQuota: ptr.To[int32](4), NamespaceUsed: used},
		{Key: private, LeasesEnabled: true, Counts: ledger.Counts{Total: 14, Available: 14}},
		{Key: withdrawn, Counts: ledger.Counts{Total: 14, Allocated: 1, Available: 13}},
	}
}

func (fakeLeasePools) WalkEntries(pool pools.Key, _ netip.Addr, visit func(grants.TakenRange) bool) {
	a := netip.MustParseAddr("203.0.113.7")
	if pool == public {
		_ = visit(grants.TakenRange{Range: netipx.IPRangeFrom(a, a), Use: grants.UseLease, Kind: "IPLease", Namespace: "team-a", Name: "shop", Since: fleet.Noon, Ports: []string{"TCP/80 web"}}) &&
			visit(grants.TakenRange{Range: netipx.IPRangeFrom(a.Next(), a.Next()), Kind: "IPAddressClaim", Namespace: "team-a", Name: "machine"}) &&
			visit(grants.TakenRange{Range: netipx.IPRangeFrom(a.Prev(), a.Prev()), Use: grants.UseLease, Kind: "IPLease", Namespace: "team-b", Name: "shop", Since: fleet.Noon})
	}
}

func (fakeLeasePools) WalkWaiters(pool pools.Key, visit func(grants.WaitingClaimant) bool) {
	if pool == public {
		_ = visit(grants.WaitingClaimant{Kind: "IPAddressClaim", Namespace: "team-a", Name: "machine"}) &&
			visit(grants.WaitingClaimant{Kind: "IPLease", Namespace: "team-b", Name: "late", Since: fleet.Noon, Reason: "PoolExhausted", Message: "full"})
	}
}

// TestLeaseQueries checks that programs can query leases, and get 503 while the state is not known (A12).
func TestLeaseQueries(t *testing.T) {
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
		"state?namespace=unknown":            {200, `{"leases":[]}`},
		"waiting":                            {200, `{"leases":[{"namespace":"team-b","name":"late","pool":"public","since":` + unixText + `,"reason":"PoolExhausted","message":"full"}]}`},
		"waiting?namespace=team-a":           {200, `{"leases":[]}`},
		"health":                             {200, `{"status":"ok"}`},
		"nothing":                            {404, "404 page not found"},
	} {
		h := (&LeaseAPI{Pools: fakeLeasePools{}, Elected: elected, CheckReady: func(context.Context) error { return nil }}).Handler()
		expectAnswer(t, h, path, want.code, want.text)
	}
	unread := (&LeaseAPI{Pools: fakeLeasePools{}, Elected: elected, CheckReady: func(context.Context) error { return errors.New("the claims are not read yet") }}).Handler()
	follows := (&LeaseAPI{Pools: fakeLeasePools{}, Elected: make(chan struct{}), CheckReady: func(context.Context) error { return nil }}).Handler()
	for _, path := range []string{"usage", "state", "waiting", "health"} {
		expectAnswer(t, unread, path, http.StatusServiceUnavailable, `{"error":"the claims are not read yet"}`)
		expectAnswer(t, follows, path, http.StatusServiceUnavailable, `{"error":"this manager does not lead; ask the one that does"}`)
	}
}

func expectAnswer(t *testing.T, h http.Handler, path string, code int, text string) {
	t.Helper()
	resp := getResponse(t, h, LeasesPath+path)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != code || strings.TrimSpace(string(got)) != text {
		t.Errorf("%s: %d %s %v\nwant %d %s", path, resp.StatusCode, got, err, code, text)
	}
}
