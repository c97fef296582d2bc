// Package record is how hosts write down what they do, in coordination Leases of one namespace: a heartbeat of each host, and
// a lock of each address.
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
	// Namespace has the locks and the heartbeats.
	Namespace = "butler-host-lb"

	lockPrefix, hostPrefix = "ip-", "host-"
)

// NameOf is the name of an object that is for an address: the address with hyphens.
func NameOf(a netip.Addr) string {
	return lockPrefix + strings.NewReplacer(".", "-", ":", "-").Replace(a.StringExpanded())
}

// LockName is the name of the lock of an address, with its network, if that has a name.
func LockName(a netip.Addr, network string) string {
	name := NameOf(a)
	if network != "" {
		name += "-" + network
	}
	return name
}

// HostName is the name of the heartbeat of a host.
func HostName(host string) string { return hostPrefix + host }

// IsHost reports whether a Lease is a heartbeat, IsLock whether it is a lock.
func IsHost(name string) bool { return strings.HasPrefix(name, hostPrefix) }

// IsLock reports whether a Lease is the lock of an address.
func IsLock(name string) bool { return strings.HasPrefix(name, lockPrefix) }

// Lock is what the lock of an address says, beside who holds it (spec.holderIdentity, empty: nobody).
type Lock struct {
	Address netip.Addr `json:"address"`
	Network string     `json:"network,omitempty"`
	// Left is on a lock that nobody holds: the host which gave it up, where nobody has asked the wire since whether somebody
	// answers for the address still. Without it the wire was asked, and nobody answered.
	Left string `json:"left,omitempty"`
	// Report is what the holder says of the address, nil: nothing yet.
	Report *Report `json:"report,omitempty"`
}

// Report is what a host says of an address whose lock it holds.
type Report = hostlb.Report

// PortReport is why a host does not serve a port.
type PortReport = hostlb.PortReport

// LockOf reads the lock of an address, and who holds it: that also where the rest cannot be read.
func LockOf(o *coordinationv1.Lease) (l Lock, holder string, err error) {
	holder = ptr.Deref(o.Spec.HolderIdentity, "")
	if err := json.Unmarshal([]byte(o.Annotations[v1alpha1.HostLBAnnotation]), &l); err != nil {
		return Lock{}, holder, fmt.Errorf("the annotation %s of Lease %s/%s cannot be read; a host that reaches the address writes it anew: %w", v1alpha1.HostLBAnnotation, o.Namespace, o.Name, err)
	}
	return l, holder, nil
}

// Write writes a lock, and who holds it, into its Lease, which may be new.
func (l *Lock) Write(o *coordinationv1.Lease, holder string) {
	o.Namespace, o.Name = Namespace, LockName(l.Address, l.Network)
	o.Spec.HolderIdentity = ptr.To(holder)
	annotate(o, l)
}

// host is what a heartbeat says.
type host struct {
	Networks []hostlb.Network `json:"networks"`
	Network  string           `json:"network,omitempty"`
	Node     string           `json:"node,omitempty"`
	Own      []netip.Addr     `json:"own,omitempty"`
	Forwards bool             `json:"forwards,omitempty"`
}

// HostOf reads a heartbeat: the host, and the machine that has its name, by the boot id of its kernel.
func HostOf(o *coordinationv1.Lease) (h hostlb.Host, machine string, err error) {
	var is host
	if err := json.Unmarshal([]byte(o.Annotations[v1alpha1.HostLBAnnotation]), &is); err != nil {
		return h, "", fmt.Errorf("the annotation %s of Lease %s/%s cannot be read; delete the Lease, its host makes it again: %w", v1alpha1.HostLBAnnotation, o.Namespace, o.Name, err)
	}
	h = hostlb.Host{Name: strings.TrimPrefix(o.Name, hostPrefix), Networks: is.Networks, Network: is.Network, Node: is.Node, Own: is.Own, Forwards: is.Forwards}
	h.Lifetime = time.Duration(ptr.Deref(o.Spec.LeaseDurationSeconds, 0)) * time.Second
	return h, ptr.Deref(o.Spec.HolderIdentity, ""), nil
}

// WriteHost writes a heartbeat into its Lease, which may be new.
func WriteHost(o *coordinationv1.Lease, h *hostlb.Host, machine string, renewed metav1.MicroTime, seconds int32) {
	o.Namespace, o.Name = Namespace, HostName(h.Name)
	o.Spec.HolderIdentity, o.Spec.RenewTime, o.Spec.LeaseDurationSeconds = ptr.To(machine), &renewed, ptr.To(seconds)
	annotate(o, host{h.Networks, h.Network, h.Node, h.Own, h.Forwards})
}

func annotate(o *coordinationv1.Lease, what any) {
	text, err := json.Marshal(what)
	if err != nil {
		panic(err) // it is strings and addresses
	}
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[v1alpha1.HostLBAnnotation] = string(text)
}
