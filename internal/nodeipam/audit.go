package nodeipam

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/metrics"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

const (
	// maxConcurrentAudits bounds the clusters whose Nodes are listed at once: each list is of all Nodes, and one that
	// does not finish delays few others.
	maxConcurrentAudits = 10
	// maxLoggedShares is how many shared ranges are logged per cluster.
	maxLoggedShares = 20
)

// NodeAudit audits one list of all Nodes of a cluster: its findings do not depend on anything that was remembered. Its
// zero value has no Nodes.
type NodeAudit struct{ nodes []*podcidr.Node }

// AddNode adds a Node of a list. A Node that is being deleted counts, as its Pods still run.
func (na *NodeAudit) AddNode(n *corev1.Node) {
	if node := nodeFromObject(n); len(node.CIDRs) > 0 {
		na.nodes = append(na.nodes, node)
	}
}

// SharedRanges returns the ranges that several Nodes have, and how many Nodes have any of them.
func (na *NodeAudit) SharedRanges() (shares []podcidr.SharedRange, nodes int) {
	shares = podcidr.FindSharedRanges(na.nodes)
	among := map[string]struct{}{}
	for _, s := range shares {
		for _, name := range s.NodeNames {
			among[name] = struct{}{}
		}
	}
	return shares, len(among)
}

// Auditor periodically counts, from a consistent list, the Nodes of each cluster whose pod CIDRs overlap those of
// another one. It only reports, and takes no CIDR away.
type Auditor struct {
	// ClusterAllocators returns the allocators of the clusters that are served at the moment.
	ClusterAllocators func() []*ClusterAllocator
	Interval          time.Duration
	Clock             clock.Clock

	// auditedClusters are the clusters with a metric.
	auditedClusters map[ClusterKey]struct{}
}

// Start audits until the context ends, the first time after one interval.
func (au *Auditor) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-au.Clock.After(au.Interval):
		}
		au.auditClusters(ctx)
	}
}

// auditClusters audits all clusters. If the Nodes of a cluster cannot be listed, its last count stays; if a cluster is
// no longer served, its metric is deleted.
func (au *Auditor) auditClusters(ctx context.Context) {
	old, sites := au.auditedClusters, au.ClusterAllocators()
	au.auditedClusters = map[ClusterKey]struct{}{}
	for _, s := range sites {
		au.auditedClusters[s.ClusterKey] = struct{}{}
	}
	for key := range old {
		if _, ok := au.auditedClusters[key]; !ok {
			metrics.AuditDuplicateNodeCIDRs.DeleteLabelValues(key.Namespace, key.Name)
		}
	}
	var group errgroup.Group
	group.SetLimit(maxConcurrentAudits)
	var writing sync.Mutex
	read := len(sites) == 0
	for _, s := range sites {
		group.Go(func() error {
			check, err := s.auditNodes(ctx)
			writing.Lock()
			defer writing.Unlock()
			if err != nil {
				if ctx.Err() == nil {
					log.FromContext(ctx).Error(err, "The audit could not read the Nodes of a cluster; it is repeated", "cluster", s.ClusterKey.String())
				}
				return nil
			}
			read = true
			shares, nodes := check.SharedRanges()
			for _, share := range shares[:min(len(shares), maxLoggedShares)] {
				log.FromContext(ctx).Error(nil, "Several Nodes have one pod CIDR", "cluster", s.ClusterKey.String(), "cidr", share.String(), "nodes", joinNames(share.NodeNames))
			}
			metrics.AuditDuplicateNodeCIDRs.WithLabelValues(s.ClusterKey.Namespace, s.ClusterKey.Name).Set(float64(nodes))
			return nil
		})
	}
	_ = group.Wait() // a cluster that cannot be read does not fail the others
	if read {
		metrics.LastNodeAuditTime.WithLabelValues().Set(float64(au.Clock.Now().Unix()))
	}
}

// auditNodes lists the Nodes of the cluster.
func (ca *ClusterAllocator) auditNodes(ctx context.Context) (*NodeAudit, error) {
	c := &NodeAudit{}
	return c, ca.nodes.listNodes(ctx, c.AddNode)
}
