// Package elastic decides how the load-balancer addresses of a workload cluster follow its Services: which
// Service needs another address, how many that makes, and which blocks nobody needs any more.
//
// It replays how the MetalLB controller (0.16) places Services: see Assess. Everything is pure, plain values
// in and a plan with reasons out; nothing is read or written here.
package elastic
