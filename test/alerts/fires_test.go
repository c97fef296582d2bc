package alerts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// minutes is the length of the samples before the moment that is evaluated, longer than the range of any alert.
const minutes = 120

// sampled is a metric with its value at each minute; false means that there is no sample.
type sampled struct {
	metric string
	at     func(minute int) (float64, bool)
}

func always(v float64) func(int) (float64, bool) {
	return func(int) (float64, bool) { return v, true }
}

// since returns a value that exists from `ago` minutes before the end on.
func since(ago int, v float64) func(int) (float64, bool) {
	return func(minute int) (float64, bool) { return v, minute >= minutes-ago }
}

// until returns a value that exists until `ago` minutes before the end.
func until(ago int, v float64) func(int) (float64, bool) {
	return func(minute int) (float64, bool) { return v, minute < minutes-ago }
}

// steps returns a counter that increases by 1 at each of the given numbers of minutes before the end.
func steps(ago ...int) func(int) (float64, bool) {
	return func(minute int) (v float64, ok bool) {
		for _, a := range ago {
			if minute >= minutes-a {
				v++
			}
		}
		return v, true
	}
}

// Alerts fire if there is a fault, and do not fire without one: an alert that pages without a reason is turned off.
// Prometheus' own engine evaluates the expressions, at each minute of the time for which they must hold.
func TestAlertsFire(t *testing.T) { // W35
	leads := func(name string, at func(int) (float64, bool)) sampled {
		return sampled{`leader_election_master_status{name="butler-ipam` + name + `.butler.butlerlabs.dev"}`, at}
	}
	pool := func(metric string, v float64) sampled {
		return sampled{"butler_ipam_pool_" + metric + `{kind="NetworkPool",namespace="ns",pool="p"}`, always(v)}
	}
	webhook := func(at func(int) (float64, bool)) sampled {
		return sampled{`apiserver_admission_webhook_rejection_count{name="validation.networkpool.butler.butlerlabs.dev",error_type="calling_webhook_error"}`, at}
	}
	auditedBy := func(instance string, ago time.Duration) sampled {
		return sampled{`butler_ipam_last_audit_timestamp_seconds{instance="` + instance + `"}`, func(minute int) (float64, bool) {
			return max(0, float64(minute*60)-ago.Seconds()), true
		}}
	}
	audited := func(ago time.Duration) sampled { return auditedBy("a", ago) }
	cluster := `{cluster_namespace="ns",cluster_name="c"}`
	tests := map[string]struct {
		alert  string
		series []sampled
		fires  bool
	}{
		"one leader":                         {"ButlerNoLeader", []sampled{leads("", always(1)), {"butler_ipam_shards", always(1)}}, false},
		"no leader":                          {"ButlerNoLeader", []sampled{leads("", always(0)), {"butler_ipam_shards", always(1)}}, true},
		"no manager":                         {"ButlerNoLeader", nil, true},
		"a leader for each shard":            {"ButlerNoLeader", []sampled{leads("-1-of-2", always(1)), leads("-2-of-2", always(1)), {"butler_ipam_shards", always(2)}}, false},
		"no manager of a shard":              {"ButlerNoLeader", []sampled{leads("-1-of-2", always(1)), leads("-2-of-2", until(30, 1)), {"butler_ipam_shards", always(2)}}, true},
		"no leader of a shard":               {"ButlerNoLeader", []sampled{leads("-1-of-2", always(1)), leads("-2-of-2", always(0)), {"butler_ipam_shards", always(2)}}, true},
		"fewer shards than before":           {"ButlerNoLeader", []sampled{leads("-1-of-2", until(20, 1)), leads("-2-of-2", until(20, 1)), leads("", since(20, 1)), {"butler_ipam_shards", since(20, 1)}}, false},
		"an audit each five minutes":         {"ButlerAuditStopped", []sampled{audited(5 * time.Minute), {"butler_ipam_audit_interval_seconds", always(300)}}, false},
		"an audit each hour":                 {"ButlerAuditStopped", []sampled{audited(time.Hour), {"butler_ipam_audit_interval_seconds", always(3600)}}, false},
		"no audit for 40 minutes of 5":       {"ButlerAuditStopped", []sampled{audited(40 * time.Minute), {"butler_ipam_audit_interval_seconds", always(300)}}, true},
		"no audit of one of two shards":      {"ButlerAuditStopped", []sampled{auditedBy("a", 5*time.Minute), auditedBy("b", 40*time.Minute), {"butler_ipam_audit_interval_seconds", always(300)}}, true},
		"audits of two shards":               {"ButlerAuditStopped", []sampled{auditedBy("a", 5*time.Minute), auditedBy("b", 4*time.Minute), {"butler_ipam_audit_interval_seconds", always(300)}}, false},
		"a leader that has ended":            {"ButlerAuditStopped", []sampled{auditedBy("a", time.Minute), {`butler_ipam_last_audit_timestamp_seconds{instance="b"}`, until(10, 60)}, {"butler_ipam_audit_interval_seconds", always(300)}}, false},
		"audits that are turned off":         {"ButlerAuditStopped", []sampled{leads("", always(1))}, false},
		"a pool with room":                   {"ButlerPoolExhausted", []sampled{pool("available_addresses", 1), pool("growth_addresses", 0), pool("total_addresses", 9), pool("waiting_claims", 1)}, false},
		"a pool that is full by design":      {"ButlerPoolExhausted", []sampled{pool("available_addresses", 0), pool("growth_addresses", 0), pool("total_addresses", 9), pool("waiting_claims", 0)}, false},
		"a full pool, and claims that wait":  {"ButlerPoolExhausted", []sampled{pool("available_addresses", 0), pool("growth_addresses", 0), pool("total_addresses", 9), pool("waiting_claims", 1)}, true},
		"a carved pool that grows":           {"ButlerPoolExhausted", []sampled{pool("available_addresses", 0), pool("growth_addresses", 8), pool("total_addresses", 9), pool("waiting_claims", 1)}, false},
		"half full":                          {"ButlerPoolNearlyExhausted", []sampled{pool("allocated_addresses", 5), pool("growth_addresses", 0), pool("total_addresses", 10)}, false},
		"85 of 100":                          {"ButlerPoolNearlyExhausted", []sampled{pool("allocated_addresses", 85), pool("growth_addresses", 0), pool("total_addresses", 100)}, false}, // H26
		"86 of 100":                          {"ButlerPoolNearlyExhausted", []sampled{pool("allocated_addresses", 86), pool("growth_addresses", 0), pool("total_addresses", 100)}, true},
		"nine of ten":                        {"ButlerPoolNearlyExhausted", []sampled{pool("allocated_addresses", 9), pool("growth_addresses", 0), pool("total_addresses", 10)}, true},
		"the webhook answers":                {"ButlerWebhookFails", []sampled{webhook(always(7))}, false},
		"one apply that failed":              {"ButlerWebhookFails", []sampled{webhook(steps(6))}, false},
		"the first apply ever, which failed": {"ButlerWebhookFails", []sampled{webhook(since(6, 1))}, false},
		"the first three, which failed":      {"ButlerWebhookFails", []sampled{webhook(since(6, 3))}, true},
		"it fails each minute":               {"ButlerWebhookFails", []sampled{webhook(steps(9, 8, 7, 6, 5, 4, 3, 2, 1))}, true},
		"a workload cluster that answers":    {"ButlerTenantUnreachable", []sampled{{`capi_cluster_cache_connection_up{job="butler-ipam-metrics-service",cluster_namespace="ns",cluster_name="c"}`, always(1)}}, false},
		"one that does not":                  {"ButlerTenantUnreachable", []sampled{{`capi_cluster_cache_connection_up{job="butler-ipam-metrics-service",cluster_namespace="ns",cluster_name="c"}`, always(0)}}, true},
		"Services that lack addresses":       {"ButlerDemandUnsatisfied", []sampled{{"butler_ipam_tenant_lacking_addresses" + cluster, always(1)}}, true},
		"Services that have waited briefly":  {"ButlerDemandUnsatisfied", []sampled{{"butler_ipam_tenant_lacking_addresses" + cluster, steps(3)}}, false},
		"a full range, and Nodes that wait":  {"ButlerNodeCIDRsExhausted", []sampled{{`node_ipam_controller_multicidrset_usage_cidrs{clusterCIDRName="r",cluster_namespace="ns",cluster_name="c"}`, always(1)}, {"butler_ipam_node_cidrs_waiting" + cluster, always(2)}}, true},
		"a full range, and none that waits":  {"ButlerNodeCIDRsExhausted", []sampled{{`node_ipam_controller_multicidrset_usage_cidrs{clusterCIDRName="r",cluster_namespace="ns",cluster_name="c"}`, always(1)}, {"butler_ipam_node_cidrs_waiting" + cluster, always(0)}}, false},
		"nothing is held twice":              {"ButlerAddressHeldTwice", []sampled{{"butler_ipam_audit_duplicate_addresses", always(0)}}, false},
		"an address is held twice":           {"ButlerAddressHeldTwice", []sampled{{"butler_ipam_audit_duplicate_addresses", always(1)}}, true},
	}
	all := map[string]rule{}
	for _, r := range rules(t) {
		all[r.Alert] = r
	}
	names := make([]string, 0, len(tests))
	for name := range tests {
		names = append(names, name)
	}
	slices.Sort(names)
	worlds := make([]map[string]any, 0, len(names))
	for _, name := range names {
		r, ok := all[tests[name].alert]
		if !ok {
			t.Fatalf("there is no alert %s", tests[name].alert)
		}
		worlds = append(worlds, map[string]any{"expr": r.Expr, "at": moments(t, r), "step": 60, "series": samples(tests[name].series)})
	}
	for i, found := range evaluate(t, worlds) {
		tc := tests[names[i]]
		if found.Error != "" {
			t.Errorf("%s: %s", names[i], found.Error)
		}
		if fires := !slices.ContainsFunc(found.Result, func(at []map[string]string) bool { return len(at) == 0 }); fires != tc.fires {
			t.Errorf("%s: %s fires: %t", names[i], tc.alert, fires)
		}
	}
}

// moments returns the times, in seconds, at which an alert must be true to fire at the end.
func moments(t *testing.T, r rule) (out []int64) {
	t.Helper()
	lasts := time.Duration(0)
	if r.For != "" {
		var err error
		if lasts, err = time.ParseDuration(r.For); err != nil {
			t.Fatal(err)
		}
	}
	for at := time.Duration(0); at <= lasts; at += time.Minute {
		out = append(out, int64((minutes*time.Minute - at).Seconds()))
	}
	return out
}

// samples returns series in the format that hack/tools/promql reads.
func samples(all []sampled) []map[string]any {
	out := []map[string]any{}
	for _, s := range all {
		name, rest, _ := strings.Cut(strings.TrimSuffix(s.metric, "}"), "{")
		labels := map[string]string{"__name__": name}
		for pair := range strings.SplitSeq(rest, ",") {
			if key, value, ok := strings.Cut(pair, "="); ok {
				labels[key] = strings.Trim(value, `"`)
			}
		}
		values := make([]*float64, minutes+1)
		for i := range values {
			if v, ok := s.at(i); ok {
				values[i] = &v
			}
		}
		out = append(out, map[string]any{"labels": labels, "values": values})
	}
	return out
}

// evalResult is the result of hack/tools/promql for one expression: the labels of each series at each moment.
type evalResult struct {
	Error  string
	Result [][]map[string]string
}

func evaluate(t *testing.T, worlds []map[string]any) (out []evalResult) {
	t.Helper()
	in, err := json.Marshal(worlds)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-buildvcs=false", ".", "eval")
	cmd.Dir, cmd.Stdin, cmd.Stderr = "../../hack/tools/promql", bytes.NewReader(in), os.Stderr
	text, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil || len(out) != len(worlds) {
		t.Fatal(fmt.Errorf("hack/tools/promql answers %d of %d: %w", len(out), len(worlds), err))
	}
	return out
}
