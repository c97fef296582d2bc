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
	// maxOwners bounds how many owners are told at once.
	maxOwners = 200
	// maxPorts bounds how many ports are told of each: a lease has up to 512.
	maxPorts = 8
)

// owner is who has a range, and why.
type owner struct {
	Pool      string   `json:"pool,omitempty"`
	Range     string   `json:"range,omitempty"`
	First     string   `json:"first,omitempty"`
	Use       string   `json:"use"`
	Kind      string   `json:"kind,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Cluster   string   `json:"cluster,omitempty"`
	Since     int64    `json:"since,omitempty"`
	Until     int64    `json:"until,omitempty"`
	Others    []string `json:"others,omitempty"`
	// Ports are the first of them, and MorePorts the number of the rest.
	Ports     []string `json:"ports,omitempty"`
	MorePorts int      `json:"morePorts,omitempty"`
	Deleting  bool     `json:"deleting,omitempty"`
	// Announced is the status of the condition of that name, with its reason and message; empty where it is not there.
	Announced string `json:"announced,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Message   string `json:"message,omitempty"`
}

func ownerOf(h grants.Entry) owner {
	out := owner{
		Range: poolutil.ShowRange(h.Range), First: h.Range.From().String(), Use: uses[h.Use], Kind: h.Kind, Namespace: h.Namespace, Name: h.Name,
		Cluster: h.Cluster, Since: unix(h.Since), Until: unix(h.Until), Others: h.Others,
		Ports: h.Ports[:min(len(h.Ports), maxPorts)], MorePorts: max(0, len(h.Ports)-maxPorts), Deleting: h.Deleting,
	}
	if h.Announced != nil {
		out.Announced, out.Reason, out.Message = string(h.Announced.Status), h.Announced.Reason, text.Note(h.Announced.Message)
	}
	return out
}

func waiterOf(w grants.Waiter) owner {
	return owner{
		Use: "waiting", Kind: w.Kind, Namespace: w.Namespace, Name: w.Name, Cluster: w.Cluster, Since: unix(w.Since),
		Reason: w.Reason, Message: text.Note(w.Message),
	}
}

func unix(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.Unix()
}

// list is owners, and whether there are more.
type list struct {
	Owners []owner `json:"owners"`
	More   bool    `json:"more,omitempty"`
}

// add appends an owner and reports whether there is room for it.
func (l *list) add(o owner) bool {
	if len(l.Owners) == maxOwners {
		l.More = true
		return false
	}
	l.Owners = append(l.Owners, o)
	return true
}

// owners answers with who has the addresses between two, both included.
func (p *Page) owners(r *http.Request) (any, error) {
	v, err := p.view(r)
	if err != nil {
		return nil, err
	}
	first, err := netip.ParseAddr(r.URL.Query().Get("first"))
	if err != nil {
		return nil, badf("first is not an address")
	}
	last, err := netip.ParseAddr(r.URL.Query().Get("last"))
	if err != nil {
		return nil, badf("last is not an address")
	}
	out := list{Owners: []owner{}}
	p.Pools.Walk(v.Key, first, func(h grants.Entry) bool {
		return !last.Less(h.Range.From()) && out.add(ownerOf(h))
	})
	return out, nil
}

// waiting answers with who waits, oldest first.
func (p *Page) waiting(r *http.Request) (any, error) {
	v, err := p.view(r)
	if err != nil {
		return nil, err
	}
	out := list{Owners: []owner{}}
	p.Pools.Waiting(v.Key, func(w grants.Waiter) bool { return out.add(waiterOf(w)) })
	return out, nil
}

// leases answers with the leases of a pool: those that have an address, in the order of these, then those that wait.
func (p *Page) leases(r *http.Request) (any, error) {
	v, err := p.view(r)
	if err != nil {
		return nil, err
	}
	out := list{Owners: []owner{}}
	if v.Leases == 0 {
		return out, nil
	}
	p.Pools.Walk(v.Key, lowest, func(h grants.Entry) bool {
		return h.Kind != v1alpha1.IPLeaseKind || out.add(ownerOf(h))
	})
	p.Pools.Waiting(v.Key, func(w grants.Waiter) bool {
		return w.Kind != v1alpha1.IPLeaseKind || out.add(waiterOf(w))
	})
	return out, nil
}
