//go:build linux

package forward

import "sync/atomic"

// Counts are the numbers of what was forwarded, and of what was not. Bytes are not counted: counting them would rule
// out splice.
type Counts struct {
	// Connections counts the TCP connections that were accepted, OpenConnections those that are open now, and
	// RefusedConnections those that there were no files left for.
	Connections, OpenConnections, RefusedConnections int64
	// DialErrors counts the backends that could not be reached, and the TCP connections that there was no backend for.
	DialErrors int64
	// Denied counts the TCP connections and UDP packets of clients that the port does not serve.
	Denied int64
	// Sessions counts the UDP clients of now, DroppedPackets the packets that there was no session or backend for, and
	// DisplacedSessions the sessions that were ended for those of others.
	Sessions, DroppedPackets, DisplacedSessions int64
}

func (c *Counts) add(o Counts) {
	c.Connections += o.Connections
	c.OpenConnections += o.OpenConnections
	c.RefusedConnections += o.RefusedConnections
	c.DialErrors += o.DialErrors
	c.Denied += o.Denied
	c.Sessions += o.Sessions
	c.DroppedPackets += o.DroppedPackets
	c.DisplacedSessions += o.DisplacedSessions
}

// Counts returns the counts of each port that is forwarded, and their sum, which includes ports that are not forwarded
// any more.
func (f *Forwarder) Counts() (byPort map[Port]Counts, sum Counts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	byPort, sum = make(map[Port]Counts, len(f.ports)), f.closedCounts
	for p, l := range f.ports {
		byPort[p] = l.counts()
		sum.add(byPort[p])
	}
	return byPort, sum
}

// counters are the Counts of one port, while it is forwarded.
type counters struct {
	connections, openConnections, refusedConnections, dialErrors, denied, sessions, droppedPackets, displacedSessions atomic.Int64
}

func (c *counters) counts() Counts {
	return Counts{
		Connections: c.connections.Load(), OpenConnections: c.openConnections.Load(), RefusedConnections: c.refusedConnections.Load(),
		DialErrors: c.dialErrors.Load(), Denied: c.denied.Load(), Sessions: c.sessions.Load(), DroppedPackets: c.droppedPackets.Load(), DisplacedSessions: c.displacedSessions.Load(),
	}
}
