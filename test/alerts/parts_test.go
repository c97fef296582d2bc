package alerts

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// Where components are disabled, or pools are shared by several managers, each panel of the dashboard shows data,
// except panels in collapsed rows; and no alert fires, as there is no fault. Prometheus' own engine evaluates the
// metrics that the managers export.
func TestReducedInstallations(t *testing.T) { // W35
	if testing.Short() {
		t.Skip("it starts managers and has them do all that is shown: make test-all")
	}
	for name, managers := range map[string][][]string{
		"claims alone": {nil},
		"two shards":   {{"--shard=1/2"}, {"--shard=2/2"}},
	} {
		t.Run(name, func(t *testing.T) {
			cp := start(t, framework.Options{})
			var urls []string
			for _, args := range managers {
				urls = append(urls, startLeaderManager(t, cp, args...).MetricsURL())
			}
			createServingPools(t, cp)
			var series []map[string]any
			scrape := func() {
				series = nil
				for i, url := range urls {
					series = append(series, exportedBy(t, i, url)...)
				}
			}
			// An audit and an election take their time, as does the commit that ends the last grants: the series
			// repeat one moment, so a grant in flight at that moment would be in flight all the time.
			deadline := time.Now().Add(time.Minute)
			for scrape(); (grantsInFlight(series) || len(emptyPanels(t, series)) > 0) && time.Now().Before(deadline); scrape() {
				time.Sleep(time.Second)
			}
			for _, title := range emptyPanels(t, series) {
				t.Errorf("nothing is in the panel %s: put it into a row that is collapsed", title)
			}
			for _, alert := range firing(t, series) {
				t.Errorf("%s fires", alert)
			}
		})
	}
}

// createServingPools creates pools, which the managers of both shards share; the pools serve claims and blocks,
// refuse one claim and release one. In the end there is no fault.
func createServingPools(t *testing.T, cp *framework.ControlPlane) {
	t.Helper()
	k8s, err := cp.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	ctx, ns := t.Context(), corev1.NamespaceDefault
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 { // each shard has some of them
		pool := fmt.Sprintf("pool-%d", i)
		must(k8s.Create(ctx, framework.MakePool(pool).Namespace(ns).CIDR(fmt.Sprintf("10.9.%d.0/24", i)).Obj()))
		refused := framework.MakeClaim(ns, pool+"-refused").Pool(pool).RequestAddress("10.8.0.1").Obj()
		released, stays := framework.MakeClaim(ns, pool+"-released").Pool(pool).Obj(), framework.MakeClaim(ns, pool+"-stays").Pool(pool).Obj()
		block := framework.MakeAllocation(ns, pool+"-block").Pool(pool).Count(2).Obj()
		for _, o := range []client.Object{refused, released, stays, block} {
			must(k8s.Create(ctx, o))
		}
		get := func(ctx context.Context, o client.Object) bool {
			return k8s.Get(ctx, client.ObjectKeyFromObject(o), o) == nil
		}
		eventually(t, "all of "+pool+" are answered", func(ctx context.Context) bool {
			return get(ctx, refused) && len(refused.Status.Conditions) > 0 && get(ctx, released) && released.Status.AddressRef.Name != "" &&
				get(ctx, stays) && stays.Status.AddressRef.Name != "" && get(ctx, block) && block.Status.AllocatedCount == 2
		})
		must(k8s.Delete(ctx, refused))
		must(k8s.Delete(ctx, released))
		eventually(t, "those of "+pool+" are gone", func(ctx context.Context) bool { return !get(ctx, refused) && !get(ctx, released) })
	}
}

// exportedBy returns the series of a manager as Prometheus stores them, with constant values; timestamps advance.
func exportedBy(t *testing.T, number int, url string) (out []map[string]any) {
	t.Helper()
	families, now := read(t, http.DefaultClient, url), float64(time.Now().UnixMilli())/1000
	var all []*dto.MetricFamily
	for _, f := range families {
		all = append(all, f)
	}
	vector, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{Timestamp: model.Now()}, all...)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range vector {
		name := string(s.Metric[model.MetricNameLabel])
		values := make([]*float64, minutes+1)
		for i := range values {
			v := float64(s.Value)
			if strings.HasSuffix(name, "_timestamp_seconds") {
				v = float64(i*60) - (now - v)
			}
			values[i] = &v
		}
		labels := map[string]string{"job": "butler-ipam-metrics-service", "instance": fmt.Sprint(number), "pod": fmt.Sprint("manager-", number)}
		for key, value := range s.Metric {
			labels[string(key)] = string(value)
		}
		out = append(out, map[string]any{"labels": labels, "values": values})
	}
	return out
}

// grantsInFlight reports whether a pool has grants in flight.
func grantsInFlight(series []map[string]any) bool {
	return slices.ContainsFunc(series, func(s map[string]any) bool {
		values := s["values"].([]*float64)
		return s["labels"].(map[string]string)[model.MetricNameLabel] == "butler_ipam_pool_grants_in_flight" && *values[len(values)-1] > 0
	})
}

// world returns an expression, the moments at which to evaluate it, and the series that it names.
func world(expr string, at []int64, series []map[string]any) map[string]any {
	named := slices.DeleteFunc(slices.Clone(series), func(s map[string]any) bool {
		return !strings.Contains(expr, s["labels"].(map[string]string)[model.MetricNameLabel])
	})
	return map[string]any{"expr": expr, "at": at, "step": 60, "series": named}
}

// emptyPanels returns the titles of the panels in expanded rows whose queries all return nothing.
func emptyPanels(t *testing.T, series []map[string]any) (out []string) {
	t.Helper()
	var worlds []map[string]any
	panels := readDashboard(t).Panels
	for _, p := range panels {
		for _, target := range p.Targets {
			worlds = append(worlds, world(templateReplacer.Replace(target.Expr), []int64{minutes * 60}, series))
		}
	}
	all := evaluate(t, worlds)
	for _, p := range panels {
		shown := len(p.Targets) == 0 // a row
		for range p.Targets {
			if all[0].Error != "" {
				t.Fatalf("%s: %s", p.Title, all[0].Error)
			}
			shown, all = shown || len(all[0].Result[0]) > 0, all[1:]
		}
		if !shown {
			out = append(out, p.Title)
		}
	}
	return out
}

// firing returns the alerts that fire.
func firing(t *testing.T, series []map[string]any) (out []string) {
	t.Helper()
	var worlds []map[string]any
	all := rules(t)
	for _, r := range all {
		worlds = append(worlds, world(r.Expr, moments(t, r), series))
	}
	for i, found := range evaluate(t, worlds) {
		if found.Error != "" {
			t.Fatalf("%s: %s", all[i].Alert, found.Error)
		}
		if !slices.ContainsFunc(found.Result, func(at []map[string]string) bool { return len(at) == 0 }) {
			out = append(out, all[i].Alert)
		}
	}
	return out
}
