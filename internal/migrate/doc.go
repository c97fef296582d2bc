// Package migrate turns a pool of the in-cluster provider of Cluster API, and the claims and IPAddresses of it,
// into ours without changing one address.
//
// The poolRef of a claim and the spec of an IPAddress are immutable, so both are created again under their
// names. What keeps an address from being given to somebody else meanwhile, and what a crash can leave, is in
// docs/migration.md:
//
//   - nobody serves the pools: the old one is paused and its provider stopped, ours is paused;
//   - all that is to be deleted is in a journal first;
//   - for each claim, strictly in this order: the claim is deleted, created naming our pool and with a record of
//     its address, then its IPAddress is deleted and created. So at any moment an IPAddress of one of the
//     pools has the address, or a claim of ours remembers it; and status.held of our pool has it all along;
//   - at the end our pool loses its status, so that whoever serves it has to list what exists (R10).
//
// Every step looks at what there is and does what is missing: it can be repeated, and turned around.
package migrate
