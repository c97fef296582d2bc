package extension

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"
	hooksv1 "sigs.k8s.io/cluster-api/api/runtime/hooks/v1alpha1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/endpoint"
)

const poolName = "endpoints"

var key = client.ObjectKey{Namespace: "ns", Name: "lab-control-plane"}

// lab returns a Cluster, with or without an endpoint, and its class, which asks for one.
func lab(host string) []client.Object {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lab", UID: "lab-uid"}}
	cluster.Spec.Topology.ClassRef.Name, cluster.Spec.ControlPlaneEndpoint.Host = "class", host
	class := &clusterv1.ClusterClass{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "class"}}
	class.Spec.Patches = []clusterv1.ClusterClassPatch{{Name: "endpoint", External: &clusterv1.ExternalPatchDefinition{
		GeneratePatchesExtension: endpoint.PatchesHandler + ".butler-ipam", Settings: map[string]string{endpoint.PoolNameSetting: poolName},
	}}}
	return []client.Object{cluster, class}
}

// claim returns the claim of lab, of a pool.
func claim(pool string) *ipamv1.IPAddressClaim {
	c := &ipamv1.IPAddressClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, UID: "claim-uid", OwnerReferences: []metav1.OwnerReference{{Kind: clusterv1.ClusterKind, Name: "lab", UID: "lab-uid"}},
	}}
	c.Spec.PoolRef = ipamv1.IPPoolReference{APIGroup: v1alpha1.GroupVersion.Group, Kind: v1alpha1.NetworkPoolKind, Name: pool}
	return c
}

// grant gives the claim an address, as the allocator does.
func grant(ctx context.Context, c client.Client, address string) error {
	now := &ipamv1.IPAddressClaim{}
	if err := c.Get(ctx, key, now); err != nil {
		return err
	}
	a := &ipamv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	a.Spec.Address, a.Spec.ClaimRef.Name = address, key.Name
	if err := c.Create(ctx, a); err != nil {
		return err
	}
	now.Status.AddressRef.Name = key.Name
	return c.Status().Update(ctx, now)
}

// requestPatches requests the patches of lab.
func requestPatches(ctx context.Context, c client.WithWatch) *hooksv1.GeneratePatchesResponse {
	builtins, _ := json.Marshal(hooksv1.Builtins{Cluster: &hooksv1.ClusterBuiltins{Namespace: "ns", Name: "lab", UID: "lab-uid"}})
	req := &hooksv1.GeneratePatchesRequest{Variables: []hooksv1.Variable{{Name: hooksv1.BuiltinsName}}}
	req.Variables[0].Value.Raw, req.Settings = builtins, map[string]string{endpoint.PoolNameSetting: poolName}
	item := hooksv1.GeneratePatchesRequestItem{UID: "u", HolderReference: hooksv1.HolderReference{Kind: clusterv1.ClusterKind, FieldPath: "spec.infrastructureRef"}}
	item.Object.Raw = []byte(`{}`)
	req.Items = append(req.Items, item)
	resp := &hooksv1.GeneratePatchesResponse{}
	(&EndpointPatcher{Client: c, Clock: clock.RealClock{}}).GeneratePatches(ctx, req, resp)
	return resp
}

var errLost = errors.New("the answer was lost")

// TestClusterGetsAddressDespiteFailures checks that the Cluster gets the one address that its claim has, with this
// answer or the next, whatever fails during a request.
func TestClusterGetsAddressDespiteFailures(t *testing.T) { // U44, U48
	cases := map[string]struct {
		reason string
		there  []client.Object
		funcs  func() interceptor.Funcs
		// first is a part of the first answer; empty if that has the address.
		first string
	}{
		"another manager creates the claim first": {
			funcs: func() interceptor.Funcs {
				return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if _, ok := o.(*ipamv1.IPAddressClaim); ok {
						if err := c.Create(ctx, claim(poolName)); err != nil {
							return err
						}
						if err := grant(ctx, c, "10.0.0.5"); err != nil {
							return err
						}
					}
					return c.Create(ctx, o, opts...)
				}}
			},
		},
		"the answer to the creation is lost": {
			funcs: func() interceptor.Funcs {
				return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if err := c.Create(ctx, o, opts...); err != nil {
						return err
					}
					return errors.Join(grant(ctx, c, "10.0.0.5"), errLost)
				}}
			},
			first: "creating IPAddressClaim ns/lab-control-plane: ",
		},
		"the claim gets its address before it is watched": {
			funcs: func() interceptor.Funcs {
				return interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch, _ client.ObjectList, _ ...client.ListOption) (watch.Interface, error) {
					if err := grant(ctx, c, "10.0.0.5"); err != nil {
						return nil, err
					}
					ended := watch.NewFake()
					ended.Stop()
					return ended, nil
				}}
			},
		},
		"the watch says that it began too late": {
			funcs: func() interceptor.Funcs {
				return interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch, _ client.ObjectList, _ ...client.ListOption) (watch.Interface, error) {
					if err := grant(ctx, c, "10.0.0.5"); err != nil {
						return nil, err
					}
					late := watch.NewFakeWithChanSize(1, false)
					late.Error(&metav1.Status{Reason: metav1.StatusReasonExpired})
					return late, nil
				}}
			},
		},
		"a claim of another pool gets its address before it is deleted": {
			reason: "it is deleted as it was read", there: []client.Object{claim("full")},
			funcs: func() interceptor.Funcs {
				return interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
					if err := grant(ctx, c, "10.0.0.5"); err != nil {
						return err
					}
					var d client.DeleteOptions
					d.ApplyOptions(opts)
					if d.Preconditions == nil || d.Preconditions.ResourceVersion == nil || d.Preconditions.UID == nil {
						return errors.New("it would be deleted however it is")
					}
					return apierrors.NewConflict(ipamv1.GroupVersion.WithResource("ipaddressclaims").GroupResource(), o.GetName(), nil)
				}}
			},
		},
		"a claim of another pool without an address": {
			there: []client.Object{claim("full")},
			funcs: func() interceptor.Funcs {
				return interceptor.Funcs{Watch: func(ctx context.Context, c client.WithWatch, _ client.ObjectList, _ ...client.ListOption) (watch.Interface, error) {
					now := &ipamv1.IPAddressClaim{}
					if err := c.Get(ctx, key, now); err != nil || now.Spec.PoolRef.Name != poolName {
						return nil, errors.Join(err, errors.New("it is not made anew"))
					}
					ended := watch.NewFake()
					ended.Stop()
					return ended, grant(ctx, c, "10.0.0.5")
				}}
			},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			bare := fakeClient(t, append(lab(""), tc.there...)...)
			resp := requestPatches(t.Context(), interceptor.NewClient(bare, tc.funcs()))
			if tc.first != "" {
				if resp.Status != hooksv1.ResponseStatusFailure || !strings.HasPrefix(resp.Message, tc.first) {
					t.Errorf("%s %s", resp.Status, resp.Message)
				}
				resp = requestPatches(t.Context(), bare)
			}
			if resp.Status != hooksv1.ResponseStatusSuccess || len(resp.Items) != 1 || !strings.Contains(string(resp.Items[0].Patch), `"host":"10.0.0.5"`) {
				t.Errorf("%s %s %v (%s)", resp.Status, resp.Message, resp.Items, tc.reason)
			}
			claims := &ipamv1.IPAddressClaimList{}
			if err := bare.List(t.Context(), claims); err != nil || len(claims.Items) != 1 {
				t.Errorf("%v %v", claims.Items, err)
			}
		})
	}
}

func fakeClient(t *testing.T, objs ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, ipamv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).WithStatusSubresource(&ipamv1.IPAddressClaim{}).
		WithIndex(&ipamv1.IPAddressClaim{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).Build()
}

// TestAnswersInTime checks that a request ends in time where no manager serves the pool, with a message about what it
// waits for.
func TestAnswersInTime(t *testing.T) { // U46
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	idle := interceptor.NewClient(fakeClient(t, append(lab(""), claim(poolName))...), interceptor.Funcs{
		Watch: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) (watch.Interface, error) {
			return watch.NewFake(), nil
		},
	})
	resp := requestPatches(ctx, idle)
	if resp.Status != hooksv1.ResponseStatusFailure || !strings.Contains(resp.Message, "has no answer from NetworkPool endpoints yet") {
		t.Errorf("%s %s", resp.Status, resp.Message)
	}
}

// TestAnotherAddress checks that a claim with another address than the Cluster's endpoint changes nothing.
func TestAnotherAddress(t *testing.T) { // U44
	c := fakeClient(t, append(lab("10.0.0.9"), claim(poolName))...)
	if err := grant(t.Context(), c, "10.0.0.5"); err != nil {
		t.Fatal(err)
	}
	resp := requestPatches(t.Context(), c)
	if resp.Status != hooksv1.ResponseStatusFailure || !strings.Contains(resp.Message, "the endpoint of the Cluster is 10.0.0.9, which is not changed") {
		t.Errorf("%s %s %v", resp.Status, resp.Message, resp.Items)
	}
}

// TestForgedSettingsChangeNothing checks that nothing is written for a request with settings that the class does not
// have.
func TestForgedSettingsChangeNothing(t *testing.T) { // U49
	for name, there := range map[string][]client.Object{"no claim": nil, "a claim of the class's pool": {claim("rack-1")}} {
		t.Run(name, func(t *testing.T) {
			objs := lab("")
			objs[1].(*clusterv1.ClusterClass).Spec.Patches[0].External.Settings[endpoint.PoolNameSetting] = "rack-1"
			bare := fakeClient(t, append(objs, there...)...)
			c := interceptor.NewClient(bare, interceptor.Funcs{
				Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return errLost },
				Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return errLost },
			})
			resp := requestPatches(t.Context(), c)
			if resp.Status != hooksv1.ResponseStatusFailure || !strings.HasPrefix(resp.Message, "no patch of ClusterClass ns/class names") {
				t.Errorf("%s %s", resp.Status, resp.Message)
			}
		})
	}
}
