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

// link is an interface that addresses may be put on, and its wire.
type link struct {
	netif.Link

	wire *wire.Wire
	err  error
}

// readLinks reads the interfaces of the host, and which of our addresses they have. One that is not where it belongs is taken off:
// its interface has lost its cable, or its network, and another one of the host may have that.
func (a *Agent) readLinks(ctx context.Context) error {
	all, err := netif.Read()
	if err != nil {
		return err
	}
	is := map[string]bool{}
	var networks []hostlb.Network
	on, macs := map[netip.Addr][]netif.Link{}, map[string]bool{}
	a.wires.Lock()
	defer a.wires.Unlock()
	for i := range all {
		l := &all[i]
		macs[l.MAC] = true
		for _, o := range l.Ours {
			on[o] = append(on[o], *l)
		}
		if of := networksOf(l); l.MAC != "" && len(of) > 0 && (len(a.Interfaces) == 0 || slices.Contains(a.Interfaces, l.Name)) {
			is[l.Name] = true
			a.keep(ctx, l)
			networks = append(networks, of...)
		}
	}
	for name, l := range a.links {
		if !is[name] {
			l.close()
			delete(a.links, name)
		}
	}
	slices.SortFunc(networks, func(x, y hostlb.Network) int {
		return cmp.Or(x.Prefix.Compare(y.Prefix), cmp.Compare(x.Interface, y.Interface))
	})
	a.memory.Self.Networks, a.memory.Self.Own, a.on = networks, ownOf(all, networks), on
	ours := a.tidy()
	a.memory.OnInterface(slices.Collect(maps.Keys(ours)))
	a.mine.Store(&ours)
	a.macs.Store(&macs)
	return nil
}

// tidy takes our addresses off where they do not belong, and returns those that are there still.
func (a *Agent) tidy() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for address, links := range a.on {
		place := placeOf(address, a.memory.Self.Networks, links)
		var left []netif.Link
		for i := range links {
			if l := &links[i]; l.Name == place {
				left = append(left, *l)
			} else if err := a.misplaced(l, address, place); err != nil {
				a.Log.Error(err, "An address is not where it belongs, and could not be taken off: the kernel does that", "address", address, "lifetime", a.Timing.Lifetime)
				left = append(left, *l) // it is not given up before it is off
			}
		}
		if a.on[address] = left; len(left) > 0 {
			out[address] = true
		}
	}
	return out
}

// misplaced takes an address off an interface that it does not belong on.
func (a *Agent) misplaced(l *netif.Link, address netip.Addr, place string) error {
	a.Log.Info("Takes an address off an interface that it does not belong on", "address", address, "interface", l.Name, "belongs", place)
	a.proxy.Reset(address)
	return l.Remove(address)
}

// placeOf is the interface that an address belongs on, by the longest prefix: of several that on which it is; empty: none is up and
// has an address of its network.
func placeOf(address netip.Addr, networks []hostlb.Network, on []netif.Link) string {
	name, bits, is := "", -1, false
	for _, n := range networks {
		has := slices.ContainsFunc(on, func(l netif.Link) bool { return l.Name == n.Interface })
		if longer := n.Prefix.Bits() > bits; n.Prefix.Contains(address) && (longer || (n.Prefix.Bits() == bits && has && !is)) {
			name, bits, is = n.Interface, n.Prefix.Bits(), has
		}
	}
	return name
}

// keep remembers an interface as it was read, and listens on its wire: on that of one which was made anew under its name, anew.
func (a *Agent) keep(ctx context.Context, l *netif.Link) {
	was := a.links[l.Name]
	if was == nil || was.Index != l.Index || was.MAC != l.MAC || was.wire == nil {
		if was != nil {
			was.close()
		}
		was = &link{}
		a.links[l.Name] = was
		if was.wire, was.err = wire.Open(l.Name, a.isMine, a.isOwn); was.err == nil {
			go a.hear(ctx, was.wire)
		}
		a.tell("the wire of "+l.Name, was.err)
	}
	was.Link = *l
}

// isMine reports whether an address is on an interface of this host by this program.
func (a *Agent) isMine(address netip.Addr) bool { return (*a.mine.Load())[address] }

// isOwn reports whether a MAC is of an interface of this host: its kernel may answer by another one of the same network.
func (a *Agent) isOwn(mac net.HardwareAddr) bool { return (*a.macs.Load())[mac.String()] }

// hear passes on what is heard on a wire, until that is closed.
func (a *Agent) hear(ctx context.Context, w *wire.Wire) {
	for c := range w.Claims() {
		select {
		case a.claims <- c:
		case <-ctx.Done():
		}
	}
}

func (l *link) close() {
	if l.wire != nil {
		_ = l.wire.Close() // the interface is gone, or nobody needs it
	}
}

func (a *Agent) close() {
	a.wires.Lock()
	defer a.wires.Unlock()
	for _, l := range a.links {
		l.close()
	}
	clear(a.links)
}

// networksOf are those that an interface has an address of, while it is up.
func networksOf(l *netif.Link) []hostlb.Network {
	var out []hostlb.Network
	if !l.Up {
		return nil
	}
	for _, own := range l.Own {
		n := hostlb.Network{Prefix: own.Masked(), MAC: l.MAC, Interface: l.Name}
		if !own.Addr().IsLinkLocalUnicast() && !own.Addr().IsLoopback() && !own.IsSingleIP() && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// ownOf are the addresses of these networks that the host has itself, and answers for: on whatever interface.
func ownOf(all []netif.Link, networks []hostlb.Network) []netip.Addr {
	var out []netip.Addr
	for i := range all {
		if all[i].Quiet {
			continue
		}
		for _, own := range all[i].Own {
			if slices.ContainsFunc(networks, func(n hostlb.Network) bool { return n.Prefix.Contains(own.Addr()) }) {
				out = append(out, own.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

var errNoInterface = errors.New("no interface of this host that is up has an address of its network")

// linkOf is the interface that an address belongs on.
func (a *Agent) linkOf(address netip.Addr) (*link, error) {
	l := a.links[placeOf(address, a.memory.Self.Networks, a.on[address])]
	if l == nil {
		return nil, fmt.Errorf("%s: %w", address, errNoInterface)
	}
	return l, nil
}

// wireOf is the wire that an address is on.
func (a *Agent) wireOf(address netip.Addr) (*wire.Wire, error) {
	a.wires.RLock()
	defer a.wires.RUnlock()
	l, err := a.linkOf(address)
	if err == nil {
		err = l.err
	}
	if err != nil {
		return nil, err
	}
	return l.wire, nil
}

// change adds an address, or takes it off.
func (a *Agent) change(op *hostlb.Op) error {
	address := op.Address
	if op.Kind == hostlb.Remove {
		a.Log.Info("Takes an address off", "address", address)
		return a.drop(address)
	}
	l, err := a.linkOf(address)
	if err != nil {
		return err
	}
	if op.Late(time.Now(), a.Timing) {
		return fmt.Errorf("adding %s: %w", address, hostlb.ErrLate)
	}
	if err := l.Add(address, op.LifetimeOf(time.Now(), a.Timing)); err != nil {
		return err
	}
	a.Log.Info("Adds an address", "address", address, "interface", l.Name)
	return nil
}

// drop takes an address off, wherever it is. What the proxy has open of it is reset before: nothing is sent from it after that.
func (a *Agent) drop(address netip.Addr) error {
	a.proxy.Reset(address)
	var errs []error
	for i := range a.on[address] {
		errs = append(errs, a.on[address][i].Remove(address))
	}
	return errors.Join(errs...)
}

// dropAll takes all addresses off.
func (a *Agent) dropAll() {
	all, err := netif.Read()
	a.tell("interfaces", err)
	for i := range all {
		for _, address := range all[i].Ours {
			if err := all[i].Remove(address); err != nil {
				a.Log.Error(err, "An address could not be taken off: the kernel does that", "address", address, "lifetime", a.Timing.Lifetime)
			}
		}
	}
}

// refresh gives addresses another lifetime, as far as that was not decided too long ago.
func (a *Agent) refresh(ops []hostlb.Op) {
	of := map[*link][]netip.Addr{}
	by := map[netip.Addr]*hostlb.Op{}
	for i := range ops {
		op := &ops[i]
		if op.Kind != hostlb.Refresh {
			continue
		}
		by[op.Address] = op
		if l, err := a.linkOf(op.Address); err == nil { // else the kernel takes it away
			of[l] = append(of[l], op.Address)
		}
	}
	for l, all := range of {
		if by[all[0]].Late(time.Now(), a.Timing) {
			continue // it is decided again
		}
		failed := l.Refresh(all, by[all[0]].LifetimeOf(time.Now(), a.Timing))
		for _, address := range all {
			err := failed[address]
			if a.memory.Done(time.Now(), by[address], hostlb.Result{Err: err}); err != nil && !errors.Is(err, netif.ErrNotThere) {
				a.Log.Error(err, "An address could not be refreshed", "address", address)
			}
		}
	}
}
