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
	// auditedAtOnce bounds the clusters whose Nodes are listed together: each list is of all Nodes, and one that does not
	// come to an end keeps few others waiting.
	auditedAtOnce = 10
	// sharesLogged is how many ranges that several Nodes have are logged of a cluster.
	sharesLogged = 20
)

// Check is for one look at all Nodes of a cluster: what it finds does not depend on anything that was remembered. Its zero
// value has seen none.
type Check struct{ nodes []*podcidr.Node }

// Add takes a Node of a list. One that is being deleted counts: its Pods run.
func (c *Check) Add(n *corev1.Node) {
	if has := nodeOf(n); len(has.CIDRs) > 0 {
		c.nodes = append(c.nodes, has)
	}
}

// Shares are the ranges that several Nodes have, and how many Nodes have any of them.
func (c *Check) Shares() (shares []podcidr.Share, nodes int) {
	shares = podcidr.Shares(c.nodes)
	among := map[string]struct{}{}
	for _, s := range shares {
		for _, name := range s.Nodes {
			among[name] = struct{}{}
		}
	}
	return shares, len(among)
}

// Auditor counts now and then, from a consistent list, the Nodes of each site whose pod CIDRs overlap those of another one.
// It reports, and takes nothing from anybody.
type Auditor struct {
	// Sites are those that are served at the moment.
	Sites    func() []*Site
	Interval time.Duration
	Clock    clock.Clock

	// audited are the clusters with a metric.
	audited map[Key]struct{}
}

// Start audits until the context ends, the first time after one interval.
func (au *Auditor) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-au.Clock.After(au.Interval):
		}
		au.audit(ctx)
	}
}

// audit looks at all sites. Of one whose Nodes cannot be listed the last count stays; of one that is not served any more,
// nothing does.
func (au *Auditor) audit(ctx context.Context) {
	was, sites := au.audited, au.Sites()
	au.audited = map[Key]struct{}{}
	for _, s := range sites {
		au.audited[s.Key] = struct{}{}
	}
	for key := range was {
		if _, is := au.audited[key]; !is {
			metrics.AuditNodeCIDRs.DeleteLabelValues(key.Namespace, key.Name)
		}
	}
	var group errgroup.Group
	group.SetLimit(auditedAtOnce)
	var writing sync.Mutex
	read := len(sites) == 0
	for _, s := range sites {
		group.Go(func() error {
			check, err := s.check(ctx)
			writing.Lock()
			defer writing.Unlock()
			if err != nil {
				if ctx.Err() == nil {
					log.FromContext(ctx).Error(err, "The audit could not read the Nodes of a cluster; it is repeated", "cluster", s.Key.String())
				}
				return nil
			}
			read = true
			shares, nodes := check.Shares()
			for _, share := range shares[:min(len(shares), sharesLogged)] {
				log.FromContext(ctx).Error(nil, "Several Nodes have one pod CIDR", "cluster", s.Key.String(), "cidr", share.String(), "nodes", shown(share.Nodes))
			}
			metrics.AuditNodeCIDRs.WithLabelValues(s.Key.Namespace, s.Key.Name).Set(float64(nodes))
			return nil
		})
	}
	_ = group.Wait() // a cluster that cannot be read is no error of the others
	if read {
		metrics.AuditNodesTime.WithLabelValues().Set(float64(au.Clock.Now().Unix()))
	}
}

// check lists the Nodes of the site.
func (s *Site) check(ctx context.Context) (*Check, error) {
	c := &Check{}
	return c, s.visit(ctx, c.Add)
}
