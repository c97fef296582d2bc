// Package demand decides what becomes of the load-balancer blocks of a Cluster at one look at it: what it is to be
// shown, what the pools are asked for, and what is said of it. It brings together internal/elastic, which knows
// Services and addresses, and internal/tenancy, which knows pools and IPAllocations. It is pure: what it is given is
// what was read, what it returns is to be written.
package demand
