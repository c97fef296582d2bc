// Package tenancy decides what a Cluster gets from the pools of a ProviderConfig: how many addresses, from
// which pool, under which name, and what to say of it. It is pure: no client, no clock, no memory. What it
// is given is what was read of the API server; what it returns is to be written there.
package tenancy
