package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ipamv1 "sigs.k8s.io/cluster-api/api/ipam/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

func TestUsageErrors(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		// want is part of the output, on stdout or stderr.
		want string
	}{
		"nothing is help":             {nil, 0, "Available Commands:"},
		"a command there is not":      {[]string{"bogus"}, 2, `unknown command "bogus"`},
		"a flag there is not":         {[]string{"pools", "--bogus"}, 2, "unknown flag: --bogus"},
		"an output there is not":      {[]string{"pools", "-o", "table"}, 2, `output format "table", allowed formats are: go-template`},
		"no pool":                     {[]string{"free"}, 2, "say which pool: kubectl butler-ipam free POOL"},
		"a pool there is not":         {[]string{"free", "none"}, 2, "NetworkPool default/none does not exist; is it a global one? Then write gnp/none"},
		"a kind of pool there is not": {[]string{"free", "x/none"}, 2, "write NAME, np/NAME or gnp/NAME"},
		"a count that makes no sense": {[]string{"free", "none", "-n", "0"}, 2, "a block has at least one address"},
		"no address":                  {[]string{"who", "x"}, 2, `"x" is not an address or a prefix`},
		"a claim there is not":        {[]string{"explain", "claim/none"}, 2, `ipaddressclaims.ipam.cluster.x-k8s.io "none" not found`},
		"a kind that is not known":    {[]string{"explain", "pod/none"}, 2, "write claim/NAME, ipallocation/NAME, iplease/NAME, np/NAME, gnp/NAME, node/NAME or cc/NAME"},
		"no kubeconfig":               {[]string{"audit", "--context=none"}, 2, `context "none" does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			out, errOut, code := run(t, c.args...)
			if code != c.code || !strings.Contains(out+errOut, c.want) {
				t.Errorf("exit code %d, want %d and %q:\n%s%s", code, c.code, c.want, out, errOut)
			}
		})
	}
}

// The error lists all missing permissions at once.
func TestMissingPermissionsAreListed(t *testing.T) {
	withoutRights, err := cp.NewUserKubeconfig("plugin-no-rights")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, withoutRights, 0o600); err != nil {
		t.Fatal(err)
	}
	_, errOut, code := runAs(t, path, "audit")
	want := "error: you have no permission to list ipaddresses.ipam.cluster.x-k8s.io, ipaddressclaims.ipam.cluster.x-k8s.io, ipallocations.butler.butlerlabs.dev, " +
		"ipleases.butler.butlerlabs.dev, networkpools.butler.butlerlabs.dev, globalnetworkpools.butler.butlerlabs.dev in all namespaces; " +
		"ask for the verbs get and list on these resources (the cluster role view includes them for pools)\n"
	if code != 2 || errOut != want {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, errOut, want)
	}
}

// In a cluster without the CRDs an empty result would be wrong: each command reports the missing CRDs in the same
// words.
func TestMissingKinds(t *testing.T) {
	bare, err := framework.StartControlPlane(framework.Options{NoCRDs: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bare.Stop() })
	for _, args := range [][]string{
		{"pools"}, {"free", "p"}, {"free", "gnp/g"}, {"explain", "claim/a"}, {"explain", "ipallocation/a"}, {"explain", "iplease/a"}, {"explain", "np/p"},
		{"waiting"}, {"leases"}, {"leases", "-A"}, {"audit"}, {"reserve", "r", "--pool", "p"}, {"release-held", "p"}, {"drop-in"}, {"drop-in", "-A"}, {"hand-back"},
		{"hand-back", "--apply"},
	} {
		out, errOut, code := runAs(t, bare.Kubeconfig, args...)
		before, after, _ := strings.Cut(errOut, " ipam.cluster.x-k8s.io:")
		if before == errOut {
			before, after, _ = strings.Cut(errOut, " butler.butlerlabs.dev:")
		}
		if code != 2 || out != "" || before != "error: this cluster does not have the kinds of" ||
			after != " check that the kubeconfig is that of the management cluster, and that Cluster API and this provider are installed there\n" {
			t.Errorf("%v: exit code %d\n%s%s", args, code, out, errOut)
		}
	}
}

// Two IPAddresses that a user created by hand.
func TestAuditFinds(t *testing.T) {
	ns := newNamespace(t, nil)
	pool := framework.MakePool("p").Namespace(ns).CIDR("10.91.0.0/24").Obj()
	create(t, pool)
	prefix := int32(24)
	for _, name := range []string{"a", "b"} {
		claim := framework.MakeClaim(ns, name).Pool("p").Obj()
		create(t, claim)
		address := &ipamv1.IPAddress{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: ipamv1.GroupVersion.String(), Kind: "IPAddressClaim", Name: name, UID: claim.UID,
			}}},
			Spec: ipamv1.IPAddressSpec{
				ClaimRef: ipamv1.IPAddressClaimReference{Name: name}, PoolRef: claim.Spec.PoolRef, Address: "10.91.0.7", Prefix: &prefix,
			},
		}
		create(t, address)
	}
	expect(t, 0, "10.91.0.7 is used in NetworkPool "+ns+"/p: more than one object has it, which must never happen: run kubectl butler-ipam audit\n"+
		"  IPAddressClaim  "+ns+"/a\n  since           TIME\n  IPAddressClaim  "+ns+"/b\n  since           TIME\n", "who", "10.91.0.7", "-n", ns)
	out, _, code := run(t, "audit")
	if want := "violated  10.91.0.7 of NetworkPool " + ns + "/p is held by " + ns + "/a and " + ns + "/b\n"; code != 1 || !strings.Contains(out, want) {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
	block := framework.MakeAllocation(ns, "kept").PinnedRange("10.91.0.8", "10.91.0.11").Obj()
	block.Annotations = map[string]string{v1alpha1.AddressAnnotation: "10.91.0.8/30"}
	create(t, block)
	block.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ClusterSeenCondition, Status: metav1.ConditionUnknown, Reason: clusterv1.PausedReason, LastTransitionTime: metav1.Now(),
	}}
	if err := k8s.Status().Update(t.Context(), block); err != nil {
		t.Fatal(err)
	}
	out, _, _ = run(t, "audit")
	if want := "unsettled IPAllocation " + ns + "/kept has 10.91.0.8/30 of NetworkPool " + ns + "/p, and Cluster " + ns + "/tenant does not exist: it stays"; !strings.Contains(out, want) {
		t.Errorf("%s\nwant\n%s", out, want)
	}
}
