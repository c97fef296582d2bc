//go:build linux

package forward

import "sync/atomic"

// Counts are what was forwarded, and what was not. Bytes are not counted: counting them would cost the splice.
type Counts struct {
	// Connections were accepted of TCP, Open are those that are now, and Refused those that there were no files left for.
	Connections, Open, Refused int64
	// DialErrors are backends that could not be reached, and connections of TCP that there was no backend for.
	DialErrors int64
	// Denied are connections, and packets of UDP, of clients that the port does not serve.
	Denied int64
	// Sessions are the clients of UDP now, Dropped the packets that no session or backend was there for, Displaced the sessions
	// that were ended for those of others.
	Sessions, Dropped, Displaced int64
}

func (c *Counts) add(o Counts) {
	c.Connections += o.Connections
	c.Open += o.Open
	c.Refused += o.Refused
	c.DialErrors += o.DialErrors
	c.Denied += o.Denied
	c.Sessions += o.Sessions
	c.Dropped += o.Dropped
	c.Displaced += o.Displaced
}

// Counts returns what was done for each port that is forwarded, and in all, of ports too that are not forwarded any more.
func (f *Forwarder) Counts() (byPort map[Port]Counts, sum Counts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	byPort, sum = make(map[Port]Counts, len(f.ports)), f.gone
	for p, l := range f.ports {
		byPort[p] = l.counts()
		sum.add(byPort[p])
	}
	return byPort, sum
}

// counters are the Counts of one port, while it is forwarded.
type counters struct {
	connections, open, refused, dialErrors, denied, sessions, dropped, displaced atomic.Int64
}

func (c *counters) counts() Counts {
	return Counts{
		Connections: c.connections.Load(), Open: c.open.Load(), Refused: c.refused.Load(),
		DialErrors: c.dialErrors.Load(), Denied: c.denied.Load(), Sessions: c.sessions.Load(), Dropped: c.dropped.Load(), Displaced: c.displaced.Load(),
	}
}
