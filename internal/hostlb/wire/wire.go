//go:build linux

// Package wire asks a wire who answers for an address, tells it who does, and hears who else says so: by ARP for IPv4, as RFC
// 5227 has it, and by neighbour discovery for IPv6.
package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// times is how often the wire is asked; apart, how long after each other, and after each other it is told.
	times = 3
	apart = 200 * time.Millisecond
	// heard is how many claims wait to be taken; more are dropped: who claims says so again.
	heard = 64
)

// Claim says that somebody answers for an address.
type Claim struct {
	Address netip.Addr
	MAC     net.HardwareAddr
	// Probe: he asks whether somebody does, and is about to. Who has the address has it still.
	Probe bool
}

// family is what asks and tells for addresses of one family.
type family interface {
	ask(a netip.Addr) error
	tell(a netip.Addr) error
	// read returns what somebody says of himself, or an error when it is closed.
	read() (Claim, error)
	Close() error
}

// Wire is that of one interface.
type Wire struct {
	ifi    *net.Interface
	mine   func(netip.Addr) bool
	own    func(net.HardwareAddr) bool
	claims chan Claim
	done   chan struct{}

	mu       sync.Mutex
	families map[bool]family // by whether it is IPv6
	waiting  map[netip.Addr][]chan net.HardwareAddr
	readers  sync.WaitGroup
}

// Open listens on the wire of an interface, for whoever claims to have an address of mine. What is said by an own MAC, of any
// interface of the host, is not heard. It needs the right to raw sockets (CAP_NET_RAW). IPv6 begins once the interface has a
// link-local address.
func Open(name string, mine func(netip.Addr) bool, own func(net.HardwareAddr) bool) (*Wire, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("finding the interface %s: %w", name, err)
	}
	w := &Wire{ifi: ifi, mine: mine, own: own, families: map[bool]family{}, claims: make(chan Claim, heard), done: make(chan struct{}), waiting: map[netip.Addr][]chan net.HardwareAddr{}}
	if _, err := w.family(false); err != nil {
		return nil, err
	}
	_, _ = w.family(true) // it is opened again when it is needed, and says then what is wrong
	return w, nil
}

// family is what asks and tells for addresses of a family: where it was not open yet, it is now.
func (w *Wire) family(is6 bool) (family, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.families[is6]; f != nil {
		return f, nil
	}
	select {
	case <-w.done:
		return nil, net.ErrClosed
	default:
	}
	f, err := w.open(is6)
	if err != nil {
		return nil, err
	}
	w.families[is6] = f
	w.readers.Go(func() { w.listen(f) })
	return f, nil
}

func (w *Wire) open(is6 bool) (family, error) {
	if is6 {
		f, err := openNDP(w.ifi)
		if err != nil {
			return nil, fmt.Errorf("listening for neighbours on %s: %w", w.ifi.Name, err)
		}
		return f, nil
	}
	f, err := openARP(w.ifi)
	if err != nil {
		return nil, fmt.Errorf("listening for ARP on %s: %w", w.ifi.Name, err)
	}
	return f, nil
}

// Close ends it.
func (w *Wire) Close() error {
	w.mu.Lock()
	close(w.done)
	var errs []error
	for _, f := range w.families {
		errs = append(errs, f.Close())
	}
	w.mu.Unlock()
	w.readers.Wait()
	close(w.claims)
	return errors.Join(errs...)
}

// Claims are what others say that they have, of the addresses that are mine. Of those that nobody takes in time, some are
// missing. It is closed by Close.
func (w *Wire) Claims() <-chan Claim { return w.claims }

// Probe asks three times who answers for an address, 200 ms apart, and returns the first that does; nil: nobody. It takes 600
// ms where nobody does.
func (w *Wire) Probe(ctx context.Context, a netip.Addr) (net.HardwareAddr, error) {
	f, err := w.family(a.Is6())
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", a, err)
	}
	answers := make(chan net.HardwareAddr, 1)
	w.mu.Lock()
	w.waiting[a] = append(w.waiting[a], answers)
	w.mu.Unlock()
	defer w.forget(a, answers)
	for range times {
		if err := f.ask(a); err != nil {
			return nil, fmt.Errorf("asking for %s: %w", a, err)
		}
		select {
		case mac := <-answers:
			return mac, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("asking for %s: %w", a, ctx.Err())
		case <-time.After(apart):
		}
	}
	return nil, nil
}

// forget ends a question.
func (w *Wire) forget(a netip.Addr, answers chan net.HardwareAddr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.waiting[a]
	for i, c := range all {
		if c == answers {
			all = append(all[:i], all[i+1:]...)
			break
		}
	}
	if w.waiting[a] = all; len(all) == 0 {
		delete(w.waiting, a)
	}
}

// Announce says on the wire so many times, 200 ms apart, that this host answers for an address.
func (w *Wire) Announce(ctx context.Context, a netip.Addr, times int) error {
	f, err := w.family(a.Is6())
	if err != nil {
		return fmt.Errorf("announcing %s: %w", a, err)
	}
	for i := range times {
		if err := f.tell(a); err != nil {
			return fmt.Errorf("announcing %s: %w", a, err)
		}
		if i == times-1 {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("announcing %s: %w", a, ctx.Err())
		case <-time.After(apart):
		}
	}
	return nil
}

// listen hears what is said of one family, until that is closed.
func (w *Wire) listen(f family) {
	for {
		c, err := f.read()
		if err != nil {
			select { // of one packet, or of an interface that is down
			case <-w.done:
				return
			case <-time.After(apart):
			}
			continue
		}
		if bytes.Equal(c.MAC, w.ifi.HardwareAddr) || w.own(c.MAC) {
			continue // our own word
		}
		mine := w.mine(c.Address)
		w.mu.Lock()
		for _, answers := range w.waiting[c.Address] {
			if c.Probe && mine {
				break // who asks for what is here has it not
			}
			select {
			case answers <- c.MAC:
			default: // it has one
			}
		}
		w.mu.Unlock()
		if !mine {
			continue
		}
		select {
		case w.claims <- c:
		default:
		}
	}
}
