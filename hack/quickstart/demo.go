package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// showPools applies the samples and prints the results.
func showPools(ctx context.Context, cp *framework.ControlPlane, steps *stepPrinter) error {
	c, err := cp.NewClient()
	if err != nil {
		return err
	}
	pools, err := readSamples("pools.yaml", newPool)
	if err != nil {
		return err
	}
	claims, err := readSamples("claims.yaml", func(string) client.Object { return &ipamv1.IPAddressClaim{} })
	if err != nil {
		return err
	}

	steps.beginStep("pools")
	for _, pool := range pools {
		if err := createObject(ctx, c, pool); err != nil {
			return err
		}
	}
	steps.endStepf("%d from config/samples/pools.yaml", len(pools))

	steps.beginStep("claims")
	ready, err := createClaimsAndWait(ctx, c, claims)
	if err != nil {
		return err
	}
	steps.endStepf("%d from config/samples/claims.yaml, all ready", len(claims))

	if err := showClaims(ctx, c, steps, claims, ready); err != nil {
		return err
	}
	granted, err := showBlocks(ctx, c, steps)
	if err != nil {
		return err
	}
	if err := waitForPoolCounts(ctx, c, pools, len(claims)+granted); err != nil {
		return err
	}
	if err := showCarvedPool(ctx, c, steps); err != nil {
		return err
	}
	if err := waitForCapacity(ctx, c); err != nil {
		return err
	}
	for _, resource := range []string{"networkpools", "globalnetworkpools", "providerconfigs"} {
		rows, err := listAsTable(ctx, cp, resource)
		if err != nil {
			return err
		}
		if err := printTable(steps.out, rows); err != nil {
			return err
		}
	}
	if err := waitForAllocationEvents(ctx, c); err != nil {
		return err
	}
	return showEvents(ctx, c, steps)
}

func newPool(kind string) client.Object {
	if kind == v1alpha1.GlobalNetworkPoolKind {
		return &v1alpha1.GlobalNetworkPool{}
	}
	return &v1alpha1.NetworkPool{}
}

// readSamples reads the objects of one file of config/samples. An unknown field is an error.
func readSamples(name string, object func(kind string) client.Object) ([]client.Object, error) {
	root, err := framework.FindRepoRoot()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "samples", name))
	if err != nil {
		return nil, err
	}
	var objects []client.Object
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var typeMeta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &typeMeta); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		obj := object(typeMeta.Kind)
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
		objects = append(objects, obj)
	}
	return objects, nil
}

func createObject(ctx context.Context, c client.Client, obj client.Object) error {
	if err := c.Create(ctx, obj); err != nil {
		return fmt.Errorf("creating %T %s: %w", obj, obj.GetName(), err)
	}
	return nil
}

// createClaimsAndWait creates all claims at once and returns how long each took until a watch showed it ready: the time
// that a machine controller would wait.
func createClaimsAndWait(ctx context.Context, c client.WithWatch, claims []client.Object) (map[string]time.Duration, error) {
	watcher, err := c.Watch(ctx, &ipamv1.IPAddressClaimList{})
	if err != nil {
		return nil, fmt.Errorf("watching the claims: %w", err)
	}
	defer watcher.Stop()

	created := map[string]time.Time{}
	for _, claim := range claims {
		created[claim.GetName()] = time.Now()
		if err := createObject(ctx, c, claim); err != nil {
			return nil, err
		}
	}
	took := map[string]time.Duration{}
	waiting := map[string]string{} // the reason why a claim is not ready
	for name := range created {
		waiting[name] = "no condition"
	}
	for len(waiting) > 0 {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("not every claim became ready: %v: %w", waiting, ctx.Err())
		case event, open := <-watcher.ResultChan():
			if !open {
				return nil, errors.New("the watch of the claims ended")
			}
			claim, ok := event.Object.(*ipamv1.IPAddressClaim)
			if !ok || event.Type == watch.Deleted {
				return nil, fmt.Errorf("watching the claims: unexpected %s %v", event.Type, event.Object)
			}
			if _, ours := waiting[claim.Name]; !ours {
				continue
			}
			why := notReadyReason(claim)
			if why == "" {
				took[claim.Name] = time.Since(created[claim.Name])
				delete(waiting, claim.Name)
				continue
			}
			waiting[claim.Name] = why
		}
	}
	return took, nil
}

func notReadyReason(claim *ipamv1.IPAddressClaim) string {
	condition := meta.FindStatusCondition(claim.Status.Conditions, ipamv1.IPAddressClaimReadyCondition)
	switch {
	case condition == nil:
		return "no condition"
	case condition.Status != metav1.ConditionTrue:
		return condition.Reason + ": " + condition.Message
	case claim.Status.AddressRef.Name == "":
		return "no address reference"
	}
	return ""
}

func showClaims(
	ctx context.Context, c client.Client, steps *stepPrinter, claims []client.Object, took map[string]time.Duration,
) error {
	rows := [][]string{{"CLAIM", "POOL", addressColumn, "GATEWAY", "READY AFTER"}}
	for _, obj := range claims {
		claim := &ipamv1.IPAddressClaim{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(obj), claim); err != nil {
			return fmt.Errorf("reading claim %s: %w", obj.GetName(), err)
		}
		address := &ipamv1.IPAddress{}
		key := client.ObjectKey{Namespace: claim.Namespace, Name: claim.Status.AddressRef.Name}
		if err := c.Get(ctx, key, address); err != nil {
			return fmt.Errorf("reading the address of claim %s: %w", claim.Name, err)
		}
		if address.Spec.Prefix == nil {
			return fmt.Errorf("the address of claim %s has no prefix", claim.Name)
		}
		gateway := address.Spec.Gateway
		if gateway == "" {
			gateway = "-"
		}
		rows = append(rows, []string{
			claim.Name,
			strings.ToLower(claim.Spec.PoolRef.Kind) + "/" + claim.Spec.PoolRef.Name,
			fmt.Sprintf("%s/%d", address.Spec.Address, *address.Spec.Prefix),
			gateway,
			formatDuration(took[claim.Name]),
		})
	}
	return printTable(steps.out, rows)
}

// listAsTable returns the columns of kubectl get, as the API server prints them.
func listAsTable(ctx context.Context, cp *framework.ControlPlane, resource string) ([][]string, error) {
	httpClient, err := rest.HTTPClientFor(cp.Config)
	if err != nil {
		return nil, err
	}
	url := strings.TrimSuffix(cp.Config.Host, "/") + "/apis/" + v1alpha1.GroupVersion.String() + "/" + resource
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", resource, err)
	}
	defer resp.Body.Close()
	answer := &metav1.Table{}
	if err := json.NewDecoder(resp.Body).Decode(answer); err != nil {
		return nil, fmt.Errorf("listing %s: %w", resource, err)
	}
	if len(answer.Rows) == 0 {
		return nil, fmt.Errorf("listing %s: none there (%s)", resource, resp.Status)
	}
	return tableRowsForKind(strings.ToUpper(strings.TrimSuffix(resource, "s")), answer), nil
}

func tableRowsForKind(kind string, in *metav1.Table) [][]string {
	rows := make([][]string, 1, len(in.Rows)+1)
	for i, column := range in.ColumnDefinitions {
		name := strings.ToUpper(column.Name)
		if i == 0 {
			name = kind
		}
		if column.Priority == 0 {
			rows[0] = append(rows[0], name)
		}
	}
	for _, row := range in.Rows {
		var cells []string
		for i, cell := range row.Cells {
			if in.ColumnDefinitions[i].Priority == 0 {
				if cell == nil {
					cell = "-" // a field that is not set
				}
				if n, ok := cell.(float64); ok {
					cell = int64(n)
				}
				cells = append(cells, fmt.Sprint(cell))
			}
		}
		rows = append(rows, cells)
	}
	return rows
}

func showEvents(ctx context.Context, c client.Client, steps *stepPrinter) error {
	events := &corev1.EventList{}
	if err := c.List(ctx, events); err != nil {
		return fmt.Errorf("listing the events: %w", err)
	}
	rows := [][]string{{"EVENT", "REASON", "ABOUT", "MESSAGE"}}
	for i := range events.Items {
		event := &events.Items[i]
		about := event.InvolvedObject
		if about.GroupVersionKind().Group == corev1.GroupName {
			continue // an event about an object of the API server
		}
		rows = append(rows, []string{
			event.Type, event.Reason, strings.ToLower(about.Kind) + "/" + about.Name, event.Message,
		})
	}
	if len(rows) == 1 {
		return nil
	}
	return printTable(steps.out, rows)
}
