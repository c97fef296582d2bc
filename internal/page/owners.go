package page

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/grants"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/poolutil"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/text"
)

const (
	// maxOwners limits the owners in one answer.
	maxOwners = 200
	// maxPorts limits the ports of each owner in an answer: a lease has up to 512.
	maxPorts = 8
)

// ownerRow is the owner of a range, and the use of it.
type ownerRow struct {
	Pool         string   `json:"pool,omitempty"`
	Range        string   `json:"range,omitempty"`
	FirstAddress string   `json:"first,omitempty"`
	Use          string   `json:"use"`
	Kind         string   `json:"kind,omitempty"`
	Namespace    string   `json:"namespace,omitempty"`
	Name         string   `json:"name,omitempty"`
	Cluster      string   `json:"cluster,omitempty"`
	Since        int64    `json:"since,omitempty"`
	Until        int64    `json:"until,omitempty"`
	SharedWith   []string `json:"others,omitempty"`
	// Ports lists the first ports; MorePorts counts the others.
	Ports     []string `json:"ports,omitempty"`
	MorePorts int      `json:"morePorts,omitempty"`
	Deleting  bool     `json:"deleting,omitempty"`
	// Announced is the status of the condition Announced, with its reason and message; empty where there is no such
	// condition.
	Announced string `json:"announced,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
}

func newOwnerRow(h grants.TakenRange) ownerRow {
	out := ownerRow{
		Range: poolutil.ShowRange(h.Range), FirstAddress: h.Range.From().String(), Use: useNames[h.Use], Kind: h.Kind, Namespace: h.Namespace, Name: h.Name,
		Cluster: h.Cluster, Since: unixSeconds(h.Since), Until: unixSeconds(h.Until), SharedWith: h.OtherOwners,
		Ports: h.Ports[:min(len(h.Ports), maxPorts)], MorePorts: max(0, len(h.Ports)-maxPorts), Deleting: h.Deleting,
	}
	if h.AnnouncedCondition != nil {
		out.Announced, out.Reason, out.Message = string(h.AnnouncedCondition.Status), h.AnnouncedCondition.Reason, text.SanitizeNote(h.AnnouncedCondition.Message)
	}
	return out
}

func newWaiterRow(w grants.WaitingClaimant) ownerRow {
	return ownerRow{
		Use: "waiting", Kind: w.Kind, Namespace: w.Namespace, Name: w.Name, Cluster: w.Cluster, Since: unixSeconds(w.Since),
		Reason: w.Reason, Message: text.SanitizeNote(w.Message),
	}
}

func unixSeconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// ownerList is a list of owners; More reports whether owners were left out.
type ownerList struct {
	Owners []ownerRow `json:"owners"`
	More   bool       `json:"more,omitempty"`
}

// add appends an owner and reports whether there was room for it.
func (l *ownerList) add(o ownerRow) bool {
	if len(l.Owners) == maxOwners {
		l.More = true
		return false
	}
	l.Owners = append(l.Owners, o)
	return true
}

// handleOwners returns the owners of the addresses between two, both included.
func (p *Page) handleOwners(r *http.Request) (any, error) {
	v, err := p.viewFromRequest(r)
	if err != nil {
		return nil, err
	}
	first, err := netip.ParseAddr(r.URL.Query().Get("first"))
	if err != nil {
		return nil, badRequestf("first is not an address")
	}
	last, err := netip.ParseAddr(r.URL.Query().Get("last"))
	if err != nil {
		return nil, badRequestf("last is not an address")
	}
	out := ownerList{Owners: []ownerRow{}}
	p.Pools.WalkEntries(v.Key, first, func(h grants.TakenRange) bool {
		return !last.Less(h.Range.From()) && out.add(newOwnerRow(h))
	})
	return out, nil
}

// handleWaiting returns the claimants that wait, the oldest first.
func (p *Page) handleWaiting(r *http.Request) (any, error) {
	v, err := p.viewFromRequest(r)
	if err != nil {
		return nil, err
	}
	out := ownerList{Owners: []ownerRow{}}
	p.Pools.WalkWaiters(v.Key, func(w grants.WaitingClaimant) bool { return out.add(newWaiterRow(w)) })
	return out, nil
}

// handleLeases returns the leases of a pool: those with an address, in the order of the addresses, then those that
// wait.
func (p *Page) handleLeases(r *http.Request) (any, error) {
	v, err := p.viewFromRequest(r)
	if err != nil {
		return nil, err
	}
	out := ownerList{Owners: []ownerRow{}}
	if v.LeaseCount == 0 {
		return out, nil
	}
	p.Pools.WalkEntries(v.Key, lowestAddress, func(h grants.TakenRange) bool {
		return h.Kind != v1alpha1.IPLeaseKind || out.add(newOwnerRow(h))
	})
	p.Pools.WalkWaiters(v.Key, func(w grants.WaitingClaimant) bool {
		return w.Kind != v1alpha1.IPLeaseKind || out.add(newWaiterRow(w))
	})
	return out, nil
}
