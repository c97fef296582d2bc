// Package sim is test support: it runs managers against the API servers of package faults, step by step in the virtual
// time of testing/synctest.
//
// A World is API servers, the processes under test, and users, load balancers or other controllers that write too.
// Whenever every goroutine waits, an order selects the next of the possible steps. A step is atomic: a call is
// executed, an answer arrives, a watch shows a change, a reconcile begins, a user acts. After each step that has
// changed a server, the world checks what must hold at any moment, and at the end, when everything is at rest, what
// must hold then.
//
// A package that tests with a world supplies a Config: the servers, what its managers are (Manager), what else can
// happen next, and its checks. Its scenarios are scripts of actions, and its faults are functions that decide what
// happens to a call.
package sim
