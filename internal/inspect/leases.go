package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// Lease is what a table of leases says of one.
type Lease struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pool      string `json:"pool"`
	Address   string `json:"address,omitempty"`
	// Ports are those that Services have.
	Ports []LeasePort `json:"ports,omitempty"`
	// Ready is the status of the condition, Unknown where no manager has looked at the lease.
	Ready   string `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// NotAnnounced is why a lease that Services have is not.
	NotAnnounced string `json:"notAnnounced,omitempty"`
	// Draining is what keeps a lease that is being deleted.
	Draining string `json:"draining,omitempty"`
}

// LeasePort is a port of a lease, and the Service that has it.
type LeasePort struct {
	// Port is as in TCP/80.
	Port    string `json:"port"`
	Service string `json:"service"`
}

// Leases describes leases: by namespace, then by name.
func Leases(all []v1alpha1.IPLease) []Lease {
	out := make([]Lease, 0, len(all))
	for i := range all {
		o := &all[i]
		l := Lease{Namespace: o.Namespace, Name: o.Name, Pool: o.Spec.PoolRef.Name, Address: o.Status.Address, Ready: "Unknown"}
		for _, p := range o.Status.Ports {
			l.Ports = append(l.Ports, LeasePort{fmt.Sprintf("%s/%d", p.Protocol, p.Port), p.Of()})
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ReadyCondition); c != nil {
			l.Ready = string(c.Status)
			if c.Status != "True" {
				l.Reason, l.Message = c.Reason, c.Message
			}
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.AnnouncedCondition); c != nil && c.Status == "False" {
			l.NotAnnounced = c.Message
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.DrainingCondition); c != nil && c.Status == "True" {
			l.Draining = c.Message
		}
		if o.DeletionTimestamp != nil && l.Draining == "" {
			l.Draining = "it is held by " + strings.Join(slices.Sorted(slices.Values(o.Finalizers)), ", ")
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Lease) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
