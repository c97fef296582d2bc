//go:build linux

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/netif"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/hostlb/wire"
)

// link is an interface that addresses may be put on, with the connection to its wire.
type link struct {
	netif.Link

	neighborConn *wire.Conn
	connErr      error
}

// readLinks reads the interfaces of the host, and our addresses on them. It takes off an address that is not where it
// belongs: its interface has lost its cable or its network, and another interface of the host may have that network.
func (a *Agent) readLinks(ctx context.Context) error {
	all, err := netif.ListLinks()
	if err != nil {
		return err
	}
	present := map[string]bool{}
	var networks []hostlb.Network
	on, macs := map[netip.Addr][]netif.Link{}, map[string]bool{}
	a.linksMu.Lock()
	defer a.linksMu.Unlock()
	for i := range all {
		l := &all[i]
		macs[l.MAC] = true
		for _, o := range l.Managed {
			on[o] = append(on[o], *l)
		}
		if of := networksForLink(l); l.MAC != "" && len(of) > 0 && (len(a.Interfaces) == 0 || slices.Contains(a.Interfaces, l.Name)) {
			present[l.Name] = true
			a.updateLink(ctx, l)
			networks = append(networks, of...)
		}
	}
	for name, l := range a.links {
		if !present[name] {
			l.closeConn()
			delete(a.links, name)
		}
	}
	slices.SortFunc(networks, func(x, y hostlb.Network) int {
		return cmp.Or(x.Prefix.Compare(y.Prefix), cmp.Compare(x.Interface, y.Interface))
	})
	a.state.Self.Networks, a.state.Self.OwnAddresses, a.linksByAddress = networks, findOwnAddresses(all, networks), on
	managed := a.cleanUpAddresses()
	a.state.SetManagedAddresses(slices.Collect(maps.Keys(managed)))
	a.managedAddresses.Store(&managed)
	a.interfaceMACs.Store(&macs)
	return nil
}

// cleanUpAddresses takes our addresses off where they do not belong, and returns those that are still on an interface.
func (a *Agent) cleanUpAddresses() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for address, links := range a.linksByAddress {
		place := interfaceForAddress(address, a.state.Self.Networks, links)
		var left []netif.Link
		for i := range links {
			if l := &links[i]; l.Name == place {
				left = append(left, *l)
			} else if err := a.removeMisplacedAddress(l, address, place); err != nil {
				a.Log.Error(err, "Failed to remove an address from the wrong interface; the kernel removes it when its lifetime ends", "address", address, "lifetime", a.Timing.Lifetime)
				left = append(left, *l) // it is not released before it is off
			}
		}
		if a.linksByAddress[address] = left; len(left) > 0 {
			out[address] = true
		}
	}
	return out
}

// removeMisplacedAddress takes an address off an interface that it does not belong on.
func (a *Agent) removeMisplacedAddress(l *netif.Link, address netip.Addr, place string) error {
	a.Log.Info("Removing an address from an interface that it does not belong on", "address", address, "interface", l.Name, "belongs", place)
	a.proxy.ResetAddress(address)
	return l.RemoveAddress(address)
}

// interfaceForAddress returns the interface that an address belongs on, by the longest prefix. Of several it returns
// one that has the address. It returns "" if no interface that is up has an address of the network.
func interfaceForAddress(address netip.Addr, networks []hostlb.Network, on []netif.Link) string {
	name, bits, linkExists := "", -1, false
	for _, n := range networks {
		exists := slices.ContainsFunc(on, func(l netif.Link) bool { return l.Name == n.Interface })
		if longer := n.Prefix.Bits() > bits; n.Prefix.Contains(address) && (longer || (n.Prefix.Bits() == bits && exists && !linkExists)) {
			name, bits, linkExists = n.Interface, n.Prefix.Bits(), exists
		}
	}
	return name
}

// updateLink records an interface as it was read, and listens on its wire. For an interface that was created again
// under its name it opens a new connection.
func (a *Agent) updateLink(ctx context.Context, l *netif.Link) {
	known := a.links[l.Name]
	if known == nil || known.Index != l.Index || known.MAC != l.MAC || known.neighborConn == nil {
		if known != nil {
			known.closeConn()
		}
		known = &link{}
		a.links[l.Name] = known
		if known.neighborConn, known.connErr = wire.OpenInterface(l.Name, a.isManagedAddress, a.isOwnMAC); known.connErr == nil {
			go a.passOnClaims(ctx, known.neighborConn)
		}
		a.logOnChange("the wire of "+l.Name, known.connErr)
	}
	known.Link = *l
}

// isManagedAddress reports whether this program has put an address on an interface of this host.
func (a *Agent) isManagedAddress(address netip.Addr) bool {
	return (*a.managedAddresses.Load())[address]
}

// isOwnMAC reports whether a MAC is of an interface of this host: its kernel may answer through another one of the same
// network.
func (a *Agent) isOwnMAC(mac net.HardwareAddr) bool { return (*a.interfaceMACs.Load())[mac.String()] }

// passOnClaims passes on the claims that are received on a wire, until its connection is closed.
func (a *Agent) passOnClaims(ctx context.Context, w *wire.Conn) {
	for c := range w.Claims() {
		select {
		case a.claims <- c:
		case <-ctx.Done():
		}
	}
}

func (l *link) closeConn() {
	if l.neighborConn != nil {
		_ = l.neighborConn.Close() // the interface is gone, or not needed
	}
}

func (a *Agent) closeLinks() {
	a.linksMu.Lock()
	defer a.linksMu.Unlock()
	for _, l := range a.links {
		l.closeConn()
	}
	clear(a.links)
}

// networksForLink returns the networks that an interface has an address of, while it is up.
func networksForLink(l *netif.Link) []hostlb.Network {
	var out []hostlb.Network
	if !l.Up {
		return nil
	}
	for _, own := range l.HostPrefixes {
		n := hostlb.Network{Prefix: own.Masked(), MAC: l.MAC, Interface: l.Name}
		if !own.Addr().IsLinkLocalUnicast() && !own.Addr().IsLoopback() && !own.IsSingleIP() && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// findOwnAddresses returns the addresses of these networks that the host has itself and answers for, on any interface.
func findOwnAddresses(all []netif.Link, networks []hostlb.Network) []netip.Addr {
	var out []netip.Addr
	for i := range all {
		if all[i].NoARP {
			continue
		}
		for _, own := range all[i].HostPrefixes {
			if slices.ContainsFunc(networks, func(n hostlb.Network) bool { return n.Prefix.Contains(own.Addr()) }) {
				out = append(out, own.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

var errNoInterface = errors.New("no interface of this host that is up has an address of its network")

// linkForAddress returns the interface that an address belongs on.
func (a *Agent) linkForAddress(address netip.Addr) (*link, error) {
	l := a.links[interfaceForAddress(address, a.state.Self.Networks, a.linksByAddress[address])]
	if l == nil {
		return nil, fmt.Errorf("%s: %w", address, errNoInterface)
	}
	return l, nil
}

// connForAddress returns the connection to the wire of an address.
func (a *Agent) connForAddress(address netip.Addr) (*wire.Conn, error) {
	a.linksMu.RLock()
	defer a.linksMu.RUnlock()
	l, err := a.linkForAddress(address)
	if err == nil {
		err = l.connErr
	}
	if err != nil {
		return nil, err
	}
	return l.neighborConn, nil
}

// changeAddress adds an address, or takes it off.
func (a *Agent) changeAddress(op *hostlb.Op) error {
	address := op.Address
	if op.Kind == hostlb.RemoveAddress {
		a.Log.Info("Removing an address", "address", address)
		return a.removeAddress(address)
	}
	l, err := a.linkForAddress(address)
	if err != nil {
		return err
	}
	if op.IsLate(time.Now(), a.Timing) {
		return fmt.Errorf("adding %s: %w", address, hostlb.ErrOpTooLate)
	}
	if err := l.AddAddress(address, op.AddressLifetime(time.Now(), a.Timing)); err != nil {
		return err
	}
	a.Log.Info("Added an address", "address", address, "interface", l.Name)
	return nil
}

// removeAddress takes an address off all its interfaces. The open connections of the proxy on it are reset before:
// nothing is sent from the address after that.
func (a *Agent) removeAddress(address netip.Addr) error {
	a.proxy.ResetAddress(address)
	var errs []error
	for i := range a.linksByAddress[address] {
		errs = append(errs, a.linksByAddress[address][i].RemoveAddress(address))
	}
	return errors.Join(errs...)
}

// removeAllAddresses takes all our addresses off.
func (a *Agent) removeAllAddresses() {
	all, err := netif.ListLinks()
	a.logOnChange("interfaces", err)
	for i := range all {
		for _, address := range all[i].Managed {
			if err := all[i].RemoveAddress(address); err != nil {
				a.Log.Error(err, "Failed to remove an address, the kernel removes it", "address", address, "lifetime", a.Timing.Lifetime)
			}
		}
	}
}

// refreshAddresses extends the lifetime of addresses, unless that was decided too long ago.
func (a *Agent) refreshAddresses(ops []hostlb.Op) {
	of := map[*link][]netip.Addr{}
	by := map[netip.Addr]*hostlb.Op{}
	for i := range ops {
		op := &ops[i]
		if op.Kind != hostlb.RefreshAddress {
			continue
		}
		by[op.Address] = op
		if l, err := a.linkForAddress(op.Address); err == nil { // else the kernel removes it
			of[l] = append(of[l], op.Address)
		}
	}
	for l, all := range of {
		if by[all[0]].IsLate(time.Now(), a.Timing) {
			continue // the refresh is decided again
		}
		failed := l.RefreshAddresses(all, by[all[0]].AddressLifetime(time.Now(), a.Timing))
		for _, address := range all {
			err := failed[address]
			if a.state.CompleteOp(time.Now(), by[address], hostlb.OpResult{Err: err}); err != nil && !errors.Is(err, netif.ErrAddressNotFound) {
				a.Log.Error(err, "Failed to refresh an address", "address", address)
			}
		}
	}
}
