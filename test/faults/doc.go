// Package faults is test support: an API server in memory, for tests that enumerate what can go wrong between a
// manager and the API server.
//
// It is a fake, and a fake proves nothing about the real API server: the levels of tests above use the real one. It
// exists because a test needs thousands of exact schedules: this answer is lost, that write lands late, this watch
// stalls here. Every call of a client blocks until the test lets it continue. The test decides which call is next,
// what its outcome is and which answer the client gets.
//
// It behaves like the real one in these points: UIDs, resource versions that grow with every change and do not change
// with a write that changes nothing, creation times in seconds, generations, the status subresource, JSON merge
// patches, conflicts by UID and resource version, finalizers and deletion, the last state with a deletion, and of
// server-side apply what a single field manager that forces conflicts observes. It does not have: validation,
// defaults, managed fields, more than one admission webhook, garbage collection by owner, paging, field selectors.
//
// The kinds of a management cluster and those of its workload cluster are on two servers of this package.
package faults
