package framework_test

import (
	"context"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework/watchdog"
)

var cp *framework.ControlPlane

func TestMain(m *testing.M) {
	os.Exit(framework.RunTestMain(m, framework.Options{}, func(c *framework.ControlPlane) { cp = c }))
}

func newClient(t *testing.T) client.Client {
	t.Helper()
	c, err := cp.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	return client.WithFieldValidation(c, metav1.FieldValidationStrict)
}

func TestFreePortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		port, err := framework.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d was given twice", port)
		}
		seen[port] = true
	}
}

// The processes that this test binary has started end with it, in whichever way it ends.
func TestControlPlaneIsWatched(t *testing.T) {
	if n := len(watchdog.WatchedProcesses()); runtime.GOOS == "linux" && n < 2 {
		t.Errorf("%d processes are watched, not etcd and kube-apiserver", n)
	}
}

// The API server accepts the objects that the builders build.
func TestBuiltObjectsAreAccepted(t *testing.T) {
	c := newClient(t)
	objects := map[string]client.Object{
		"pool": framework.MakePool("built").CIDR("10.1.0.0/24").Gateway("10.1.0.1").
			Reserved("10.1.0.2-10.1.0.9").PreAllocate("vip", "10.1.0.10").ReuseGracePeriod(60).Obj(),
		"pool of several subnets": framework.MakePool("subnets").Addresses("10.2.0.10-10.2.0.20", "10.3.0.7").
			Subnet("10.2.0.0/24", "10.2.0.1").Subnet("10.3.0.0/24", "").Network("dc2").AllowOverlap().Obj(),
		"global pool": framework.MakeGlobalPool("built").CIDR("fd00::/48").PrefixPerClaim(64).ForNamespaces("team", "a").Obj(),
		"claim":       framework.MakeClaim("", "built").Pool("built").RequestAddress("10.1.0.20").ClusterLabel("c").Obj(),
	}
	for name, obj := range objects {
		t.Run(name, func(t *testing.T) {
			if err := c.Create(t.Context(), obj); err != nil {
				t.Error(err)
			}
		})
	}
}

// The manager's role allows what the manager needs and nothing else.
func TestManagerKubeconfig(t *testing.T) {
	path, err := cp.ManagerKubeconfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := framework.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(cfg, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), &ipamv1.IPAddressList{}); err != nil {
		t.Errorf("listing addresses: %v", err)
	}
	if err := c.List(t.Context(), &v1alpha1.NetworkPoolList{}); err != nil {
		t.Errorf("listing pools: %v", err)
	}
	if err := c.Create(t.Context(), framework.MakePool("forbidden").CIDR("10.9.0.0/24").Obj()); !apierrors.IsForbidden(err) {
		t.Errorf("the manager may create pools: %v", err)
	}
}

func TestAPIServerRestart(t *testing.T) {
	c := newClient(t)
	if err := cp.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := c.List(ctx, &ipamv1.IPAddressClaimList{}); err == nil {
		t.Error("a stopped API server answers")
	}
	if err := cp.StartAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := c.List(t.Context(), &ipamv1.IPAddressClaimList{}); err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestMissingControlPlane(t *testing.T) {
	t.Setenv("KUBEBUILDER_ASSETS", t.TempDir())
	_, err := framework.StartControlPlane(framework.Options{})
	if err == nil || !strings.Contains(err.Error(), "make control-plane") {
		t.Errorf("want an error that says what to do, got %v", err)
	}
}
