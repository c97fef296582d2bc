// Package migrate turns a pool of another provider, and what claims of it have, into ours without changing one address.
// What differs between the providers is an origin: the in-cluster provider of Cluster API, and Metal3's IPAM.
//
// What keeps an address from being given to somebody else meanwhile, and what a crash can leave, is in docs/migration.md:
//
//   - nobody serves the pools: the provider of the old one is stopped, ours is paused. The old pool is paused where its
//     provider heeds that, and else it goes before there is ours;
//   - all that is to be deleted is in a journal first;
//   - for each claim, strictly in this order: there is a claim that names our pool, with a record of its address, then its
//     IPAddress. At any moment an IPAddress of one of the pools has the address, or a claim of ours remembers it; and
//     status.held of our pool has it all along;
//   - at the end our pool loses its status, so that whoever serves it has to list what exists (R10).
//
// The poolRef of a claim and the spec of an IPAddress are immutable: those of Cluster API are deleted and created again
// under their names. Those of Metal3 are of other kinds, and stay beside ours.
//
// Every step looks at what there is and does what is missing: it can be repeated, and turned around.
package migrate
