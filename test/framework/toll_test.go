package framework

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The work of a manager is counted separately by controller, API server and cause.
func TestRequestCounts(t *testing.T) {
	metrics := `# TYPE controller_runtime_reconcile_total counter
controller_runtime_reconcile_total{controller="networkpool",result="error"} 3
controller_runtime_reconcile_total{controller="networkpool",result="success"} 4
controller_runtime_reconcile_total{controller="tenant",result="success"} 2
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="a",method="GET"} 5
rest_client_requests_total{code="201",host="a",method="POST"} 1
rest_client_requests_total{code="403",host="a",method="PATCH"} 6
rest_client_requests_total{code="<error>",host="b",method="GET"} 1
`
	const log = `I1127 19:02:54.136355   10605 takeover.go:135] "Took the pool over" pool="NetworkPool a/p" term=1
E1127 19:02:56.241245   10605 complaints.go:71] "Writing a claim \"failed\"; it is tried again" err="no" claim="a/c-00"
E1127 19:02:56.500938       7 complaints.go:71] "Writing a claim \"failed\"; it is tried again" err="exceeded" claim="b/c-01"
 > that goes on in a second line
W1127 19:02:57.000000   10605 warnings.go:70] something deprecated
`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(metrics)) }))
	defer server.Close()
	m := &Manager{LogFile: filepath.Join(t.TempDir(), "log"), metricsURL: server.URL}
	if err := os.WriteFile(m.LogFile, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	want := WorkCounts{
		"reconciles of networkpool": 7, "reconciles of tenant": 2, "reads of a": 5, "writes to a": 7, "reads of b": 1,
		`log lines of takeover.go:135] "Took the pool over"`:                             1,
		`log lines of complaints.go:71] "Writing a claim \"failed\"; it is tried again"`: 2,
		`log lines of warnings.go:70]`:                                                   1,
	}
	watch := m.NewWorkMonitor()
	got, err := watch.ReadAboveRate(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the first reading is not of all that was done (-want +got):\n%s", diff)
	}
	if got, err = watch.ReadAboveRate(t.Context(), 0); err != nil || len(got) > 0 {
		t.Errorf("nothing was done since, and it returns %v, %v", got, err)
	}
}
