package nodeipam

import (
	"fmt"
	"net/netip"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/sim"
)

// mostRemembered is how many bytes may be kept per Node that has its CIDR: a process takes about twice its live heap,
// and a Node may cost it 2 KB (K42).
const mostRemembered = 900

// TestFiveThousandNodes checks K42: 5,000 Nodes are all served from 300 ClusterCIDRs of one range, and the memory per
// Node is bounded.
func TestFiveThousandNodes(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector remembers more")
	}
	const nodes, ranges = 5_000, 300
	m := newNodeState(ClusterKey{}, 0)
	var objects []RangeObject
	for i := range ranges {
		c := newRange("x")
		c.Name, c.UID, c.Spec.IPv4 = fmt.Sprint("c", i), types.UID(fmt.Sprint("c", i)), "10.0.0.0/8"
		c.Spec.PerNodeHostBits = int32(6 + i%4)
		objects = append(objects, RangeObjectFromClusterCIDR(c))
	}
	m.setRangeObjects(objects)
	m.term.takeoverCount++
	m.applyTakeover(fence.State{Holder: "me", Term: 1, Seq: 1}, map[types.UID]*nodeEntry{}, noon)
	before := sim.HeapInUse()
	for i := range nodes {
		m.observeNode(&podcidr.Node{
			Name: fmt.Sprintf("worker-%05d", i), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)), CreatedAt: noon,
			Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprintf("worker-%05d", i), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
		}, "1", noon)
	}
	allocated := map[netip.Prefix]bool{}
	for now := noon; len(allocated) < nodes && now.Before(noon.Add(time.Hour)); now = now.Add(time.Second) {
		m.planner.planGrants(now)
		if _, p, _ := m.commits.prepareCommit(now); p != nil {
			m.commits.recordCommitted(p, false, now)
		}
		for _, g := range m.grants.byNode {
			allocated[g.CIDRs[0]] = true
			n := *g.Node
			n.CIDRs, n.Labels = g.CIDRs, nil // as nodeFromObject does
			m.observeNode(&n, "2", now)
		}
	}
	if len(allocated) != nodes {
		t.Fatalf("%d Nodes have a CIDR of their own", len(allocated))
	}
	m.commits.prepareCommit(noon.Add(time.Hour))
	clear(allocated)
	perNode := float64(sim.HeapInUse()-before) / nodes
	runtime.KeepAlive(m)
	if t.Logf("%.0f bytes are remembered of each Node", perNode); perNode > mostRemembered {
		t.Errorf("the bound is %d", mostRemembered)
	}
}
