package framework

import "time"

const (
	// Soon bounds what an event has to bring about. It is less than the backstops of the controllers, 30 seconds for
	// Clusters and a minute for pools: a wake-up that is lost fails a test, although a backstop would make up for it.
	Soon = 25 * time.Second
	// Late bounds what no event brings about: a load that takes as long as the machine needs, or a client that tries
	// again in its own time. Nothing waits for it to pass.
	Late = 5 * time.Minute
)
