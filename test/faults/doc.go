// Package faults is test support: an API server in memory, for tests that enumerate what can go
// wrong between a manager and the API server.
//
// It is a fake, and a fake proves nothing about the real API server: the levels of tests above use
// the real one. It exists because a test wants thousands of schedules, each of them exactly: this
// answer is lost, that write lands late, this watch stalls here. Every call of a client waits at a
// gate, and the test decides which call is next, what becomes of it and what its client is told.
//
// What it does like the real one: UIDs, resource versions that grow with every change and stay with
// a write that changes nothing, creation times in seconds, generations, the status subresource,
// JSON merge patches, conflicts by UID and resource version, finalizers and deletion, the last state
// with a deletion, and of server-side apply as much as one forceful manager of fields sees of it. What it does not
// have: validation, defaults, managed fields, of admission more than one webhook, owners' garbage collection, paging, field selectors.
//
// A cluster's kinds and its workload cluster's are on servers of their own: two of these.
package faults
