// Package cli runs the kubectl plugin against a real kube-apiserver, with the manager as a process where a test needs
// one.
package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/cli"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/coreapi"
)

var (
	cp    *framework.ControlPlane
	k8s   client.WithWatch
	names atomic.Int64
)

func TestMain(m *testing.M) {
	os.Exit(framework.RunTestMain(m, framework.Options{}, func(c *framework.ControlPlane) {
		var err error
		if cp, err = c, nil; err == nil {
			k8s, err = c.NewClient()
		}
		if err == nil {
			err = c.InstallInClusterPools()
		}
		if err == nil {
			err = c.InstallMetal3Pools(context.Background())
		}
		if err == nil {
			_, err = coreapi.ServeWebhooks(context.Background(), c) // as in a management cluster; it ends with this process
		}
		if err != nil {
			panic(err)
		}
	}))
}

// run runs the plugin and returns its output and its exit code.
func run(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	return runAs(t, cp.Kubeconfig, args...)
}

func runAs(t *testing.T, kubeconfig string, args ...string) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	args = slices.Insert(slices.Clone(args), min(1, len(args)), "--kubeconfig="+kubeconfig) // the argument to complete must be last
	code = cli.Run(t.Context(), args, cli.EnvFromStreams(strings.NewReader(""), &o, &e, time.Now))
	return o.String(), e.String(), code
}

// expect runs the plugin and compares its output, except times, and its exit code.
func expect(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	out, errOut, got := run(t, args...)
	if got != code {
		t.Fatalf("%v: exit code %d, want %d\n%s%s", args, got, code, out, errOut)
	}
	if out = timeless(out); out != want {
		t.Errorf("%v printed\n%s\nwant\n%s", args, out, want)
	}
}

var times = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ( \([^)]*\))?`)

func timeless(text string) string { return times.ReplaceAllString(text, "TIME") }

// newNamespace creates a namespace with a name of its own.
func newNamespace(t *testing.T, labels map[string]string) string {
	t.Helper()
	name := fmt.Sprintf("spec-%d", names.Add(1))
	createNamespace(t, name, labels)
	return name
}

// createNamespace creates a namespace. Each test begins with an empty cluster: an audit reads all namespaces, and
// tests run in any order.
func createNamespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	if !strings.Contains(t.Name(), "/") {
		if _, loaded := emptied.LoadOrStore(t, true); !loaded {
			if err := framework.CleanUpCluster(t.Context(), k8s); err != nil { // the managers of earlier tests have ended
				t.Fatal(err)
			}
		}
	}
	create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// emptied holds the tests that have emptied the cluster.
var emptied sync.Map

func create(t *testing.T, objs ...client.Object) {
	t.Helper()
	for _, obj := range objs {
		if err := k8s.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
}

// startManager starts a manager of one namespace, or of all if it is empty; it ends with the test.
func startManager(t *testing.T, namespace string, args ...string) *framework.Manager {
	t.Helper()
	m, err := framework.StartManager(t.Context(), framework.ManagerOptions{Kubeconfig: cp.Kubeconfig, Args: slices.Concat(framework.ComponentFlags(), args, []string{"--namespace=" + namespace})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.LogTail(20))
		}
		_ = m.Kill()
	})
	return m
}

// eventually polls until holds returns nil; its last error is the failure.
func eventually(t *testing.T, holds func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.EventTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := holds(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-tick.C:
		}
	}
}

// ready waits until the condition Ready of an object has the wanted status.
func ready(t *testing.T, obj client.Object, want metav1.ConditionStatus) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		if err := k8s.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		var conditions []metav1.Condition
		switch o := obj.(type) {
		case *ipamv1.IPAddressClaim:
			conditions = o.Status.Conditions
		case interface{ GetConditions() []metav1.Condition }:
			conditions = o.GetConditions()
		}
		if c := meta.FindStatusCondition(conditions, "Ready"); c == nil || c.Status != want {
			return fmt.Errorf("%T %s: %v, want Ready=%s", obj, obj.GetName(), c, want)
		}
		return nil
	})
}
