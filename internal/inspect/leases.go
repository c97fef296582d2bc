package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// LeaseRow is the row of a lease in a table.
type LeaseRow struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Pool      string `json:"pool"`
	Address   string `json:"address,omitempty"`
	// Ports lists the ports that Services have.
	Ports []LeasePort `json:"ports,omitempty"`
	// Ready is the status of the condition Ready; Unknown where no manager has reconciled the lease.
	Ready   string `json:"ready"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// NotAnnouncedReason is the reason why the address of the lease is not announced.
	NotAnnouncedReason string `json:"notAnnounced,omitempty"`
	// DrainingReason is the reason why a lease that is being deleted still exists.
	DrainingReason string `json:"draining,omitempty"`
}

// LeasePort is a port of a lease, and the Service that has it.
type LeasePort struct {
	// Port has the form "TCP/80".
	Port    string `json:"port"`
	Service string `json:"service"`
}

// DescribeLeases returns a row for each lease, sorted by namespace and name.
func DescribeLeases(all []v1alpha1.IPLease) []LeaseRow {
	out := make([]LeaseRow, 0, len(all))
	for i := range all {
		o := &all[i]
		l := LeaseRow{Namespace: o.Namespace, Name: o.Name, Pool: o.Spec.PoolRef.Name, Address: o.Status.Address, Ready: "Unknown"}
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
			l.NotAnnouncedReason = c.Message
		}
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.DrainingCondition); c != nil && c.Status == "True" {
			l.DrainingReason = c.Message
		}
		if o.DeletionTimestamp != nil && l.DrainingReason == "" {
			l.DrainingReason = "it is held by " + strings.Join(slices.Sorted(slices.Values(o.Finalizers)), ", ")
		}
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b LeaseRow) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}
