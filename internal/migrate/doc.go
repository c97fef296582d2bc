// Package migrate imports a pool of another provider, with its claims and their addresses, into a pool of ours without
// changing an address. The differences between the providers are in a sourceProvider: one for the in-cluster provider
// of Cluster API, one for Metal3's IPAM.
//
// docs/migration.md explains what keeps an address from being given to another claimant meanwhile, and what a crash can
// leave:
//
//   - No manager serves the pools: the provider of the old one is stopped, ours is paused. The old pool is paused
//     where its provider respects that; else it is deleted before ours is created.
//   - Everything that is going to be deleted is in a journal first.
//   - For each claim, strictly in this order: a claim is created that names our pool and has its address on record,
//     then its IPAddress. At any moment an IPAddress of one of the pools has the address, or a claim of ours has it on
//     record; and status.held of our pool contains it all the time.
//   - At the end our pool loses its status, so that the manager that serves it must list the existing objects (R10).
//
// The poolRef of a claim and the spec of an IPAddress are immutable: those of Cluster API are deleted and created again
// under their names. Those of Metal3 are of other kinds, and stay beside ours.
//
// Every step reads the current objects and does what is missing, so it can be repeated, and reversed.
package migrate
