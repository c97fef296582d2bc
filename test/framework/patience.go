package framework

import "time"

const (
	// EventTimeout bounds the wait for the effect of an event. It is shorter than the periodic resyncs of the
	// controllers, 30 seconds for Clusters and a minute for pools: a lost wake-up fails a test, although the resync
	// would make up for it.
	EventTimeout = 25 * time.Second
	// LongTimeout bounds the wait for effects without an event: a load that takes as long as the machine needs, or a
	// client that retries in its own time. No test waits for it to pass.
	LongTimeout = 5 * time.Minute
)
