// Package elastic decides how the load-balancer addresses of a workload cluster follow its Services: which Services
// need another address, how many addresses that makes, and which blocks no Service needs any more.
//
// It replays how the MetalLB controller (0.16) places Services: see AssessServices. The package is pure: its input is
// plain values, its output is a plan with reasons, and it reads and writes nothing.
package elastic
