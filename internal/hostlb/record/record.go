// Package record reads and writes the coordination Leases in which hosts record their state, in one namespace: a
// heartbeat of each host, and a lock of each address.
package record

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
)

const (
	// Namespace is the namespace of the locks and the heartbeats.
	Namespace = "butler-host-lb"

	lockPrefix, heartbeatPrefix = "ip-", "host-"
)

// NameForAddress returns the name of an object for an address: the expanded address with hyphens, after a prefix.
func NameForAddress(a netip.Addr) string {
	return lockPrefix + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// LockName returns the name of the lock of an address, which ends in the name of the network, if that has one.
func LockName(a netip.Addr, network string) string {
	name := NameForAddress(a)
	if network != "" {
		name += "-" + network
	}
	return name
}

// HeartbeatName returns the name of the heartbeat of a host.
func HeartbeatName(host string) string { return heartbeatPrefix + host }

// HostFromHeartbeatName returns the host whose heartbeat is the Lease of this name.
func HostFromHeartbeatName(name string) string { return strings.TrimPrefix(name, heartbeatPrefix) }

// IsHeartbeatName reports whether a Lease of this name is a heartbeat.
func IsHeartbeatName(name string) bool { return strings.HasPrefix(name, heartbeatPrefix) }

// IsLockName reports whether a Lease of this name is the lock of an address.
func IsLockName(name string) bool { return strings.HasPrefix(name, lockPrefix) }

// Lock is the content of the lock of an address, beside its holder (spec.holderIdentity, empty if there is none).
type Lock struct {
	Address netip.Addr `json:"address"`
	Network string     `json:"network,omitempty"`
	// ReleasedBy is set on a lock without a holder: the host that released it, where no host has probed since whether a
	// machine still answers for the address. If it is empty, the address was probed and no host replied.
	ReleasedBy string `json:"left,omitempty"`
	// Report is the report of the holder on the address, nil if there is none yet.
	Report *Report `json:"report,omitempty"`
}

// Report is what a host reports about an address whose lock it holds.
type Report = hostlb.Report

// PortReport is why a host does not serve a port.
type PortReport = hostlb.PortReport

// ParseLock returns the lock of an address and its holder. It returns the holder even where the rest cannot be parsed.
func ParseLock(o *coordinationv1.Lease) (l Lock, holder string, err error) {
	holder = ptr.Deref(o.Spec.HolderIdentity, "")
	if err := json.Unmarshal([]byte(o.Annotations[v1alpha1.HostLBAnnotation]), &l); err != nil {
		return Lock{}, holder, fmt.Errorf("the annotation %s of Lease %s/%s cannot be read; a host that reaches the address rewrites it: %w", v1alpha1.HostLBAnnotation, o.Namespace, o.Name, err)
	}
	return l, holder, nil
}

// WriteLease writes the lock and its holder into a Lease, which may be new.
func (l *Lock) WriteLease(o *coordinationv1.Lease, holder string) {
	o.Namespace, o.Name = Namespace, LockName(l.Address, l.Network)
	o.Spec.HolderIdentity = ptr.To(holder)
	setAnnotation(o, l)
}

// heartbeatData is the content of a heartbeat.
type heartbeatData struct {
	Networks        []hostlb.Network `json:"networks"`
	Network         string           `json:"network,omitempty"`
	Node            string           `json:"node,omitempty"`
	OwnAddresses    []netip.Addr     `json:"own,omitempty"`
	ForwardsTraffic bool             `json:"forwards,omitempty"`
}

// ParseRenewal returns what a heartbeat shows of the life of its host, even where the annotation cannot be parsed: when it
// was last renewed, by the clock of the host, and the lifetime of the addresses of the host, 0 if it does not have it.
func ParseRenewal(o *coordinationv1.Lease) (renewed time.Time, lifetime time.Duration) {
	return ptr.Deref(o.Spec.RenewTime, metav1.MicroTime{}).Time, time.Duration(ptr.Deref(o.Spec.LeaseDurationSeconds, 0)) * time.Second
}

// ParseHeartbeat returns the host of a heartbeat, and the machine that uses its name, identified by the boot ID of its
// kernel.
func ParseHeartbeat(o *coordinationv1.Lease) (h hostlb.Host, machine string, err error) {
	var data heartbeatData
	if err := json.Unmarshal([]byte(o.Annotations[v1alpha1.HostLBAnnotation]), &data); err != nil {
		return h, "", fmt.Errorf("the annotation %s of Lease %s/%s cannot be read; delete the Lease, its host makes it again: %w", v1alpha1.HostLBAnnotation, o.Namespace, o.Name, err)
	}
	h = hostlb.Host{Name: HostFromHeartbeatName(o.Name), Networks: data.Networks, Network: data.Network, Node: data.Node, OwnAddresses: data.OwnAddresses, ForwardsTraffic: data.ForwardsTraffic}
	_, h.Lifetime = ParseRenewal(o)
	return h, ptr.Deref(o.Spec.HolderIdentity, ""), nil
}

// WriteHeartbeat writes a heartbeat into its Lease, which may be new.
func WriteHeartbeat(o *coordinationv1.Lease, h *hostlb.Host, machine string, renewed metav1.MicroTime, seconds int32) {
	o.Namespace, o.Name = Namespace, HeartbeatName(h.Name)
	o.Spec.HolderIdentity, o.Spec.RenewTime, o.Spec.LeaseDurationSeconds = ptr.To(machine), &renewed, ptr.To(seconds)
	setAnnotation(o, heartbeatData{h.Networks, h.Network, h.Node, h.OwnAddresses, h.ForwardsTraffic})
}

func setAnnotation(o *coordinationv1.Lease, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // the content is strings and addresses
	}
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[v1alpha1.HostLBAnnotation] = string(text)
}
