// Package metrics holds the Prometheus metrics of the manager. docs/metrics.md lists them.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var poolLabels = []string{"kind", "namespace", "pool"}

// namespace is the first part of every name.
const namespace = "butler_ipam"

func gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func counter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

// Gauges of a pool, as in its status.
var (
	PoolTotal         = gauge("pool_total_addresses", "Addresses the pool can hand out at all.", poolLabels...)
	PoolAllocated     = gauge("pool_allocated_addresses", "Addresses in use or granted.", poolLabels...)
	PoolAvailable     = gauge("pool_available_addresses", "Addresses that can be handed out now.", poolLabels...)
	PoolOutOfRange    = gauge("pool_out_of_range_addresses", "Addresses in use that the spec no longer covers.", poolLabels...)
	PoolLargestFree   = gauge("pool_largest_free_block", "Addresses of the largest contiguous free block.", poolLabels...)
	PoolFragmentation = gauge("pool_fragmentation_ratio", "0 where all free addresses are contiguous, towards 1 the more they are scattered.", poolLabels...)
	PoolCooling       = gauge("pool_cooling_ranges", "Released ranges that rest before they are given to another claim.", poolLabels...)
	PoolWaiting       = gauge("pool_waiting_claims", "Claims and allocations that wait for addresses.", poolLabels...)
	PoolBlocks        = gauge("pool_blocks", "Blocks that a carved pool has open. Other pools have no such series.", poolLabels...)
	PoolGrowth        = gauge("pool_growth_addresses", "Addresses of the blocks that a carved pool may have yet. 0, if it gets none now.", poolLabels...)
	PoolInFlight      = gauge("pool_grants_in_flight", "Grants whose IPAddress, or record on an IPAllocation, is not confirmed yet.", poolLabels...)
)

// Counters of the grant protocol.
var (
	Grants    = counter("grants_total", "Addresses granted to claims.", poolLabels...)
	Releases  = counter("releases_total", "Addresses released by claims.", poolLabels...)
	Refusals  = counter("refusals_total", "Times a claim was told that it gets no address, by reason.", append(poolLabels, "reason")...)
	Commits   = counter("commits_total", "Commits of grants to a pool's status, by outcome: written, conflict or error.", "outcome")
	Takeovers = counter("takeovers_total", "Times this manager took a pool over.", poolLabels...)
	LostTerms = counter("lost_terms_total", "Times another manager took a pool from this one.", poolLabels...)
	Voided    = counter("voided_addresses_total", "IPAddresses removed because the claim they were made for is gone.", poolLabels...)
	Strangers = counter("stranger_addresses_total", "IPAddresses that another provider wrote while this manager served the pool. Must be 0.", poolLabels...)
	Orphans   = counter("orphaned_allocations_total", "IPAllocations deleted because their Cluster is gone.", poolLabels...)
	Planning  = counter("planning_seconds_total", "Time spent on deciding who gets which addresses.")
	WriteErrs = counter("write_errors_total", "Failed writes of claims and IPAddresses, by step; each is tried again.", "step")
)

// Fulfilment is the time from the creation of a claim to its Ready condition.
var Fulfilment = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace, Name: "claim_fulfilment_seconds",
	Help:    "Time from the creation of a claim to its address.",
	Buckets: []float64{.025, .05, .1, .2, .34, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// BlockFulfilment is the time from the creation of an IPAllocation to its Ready condition.
var BlockFulfilment = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace, Name: "allocation_fulfilment_seconds",
	Help:    "Time from the creation of an IPAllocation to its block.",
	Buckets: []float64{.025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// LeaseFulfilment is the time from the creation of an IPLease to its Ready condition.
var LeaseFulfilment = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace, Name: "lease_fulfilment_seconds",
	Help:    "Time from the creation of an IPLease to its address.",
	Buckets: []float64{.025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// FulfilmentOf is Fulfilment for claims, BlockFulfilment for IPAllocations, and LeaseFulfilment for IPLeases.
func FulfilmentOf(kind string) prometheus.Observer {
	switch kind {
	case "IPAllocation":
		return BlockFulfilment
	case "IPLease":
		return LeaseFulfilment
	}
	return Fulfilment
}

// Results of the periodic audit. All must be 0.
var (
	AuditDuplicates = gauge("audit_duplicate_addresses", "Addresses that two living claims or allocations have. Must be 0.")
	AuditOrphans    = gauge("audit_orphaned_addresses", "IPAddresses whose claim does not exist, found by two audits in a row. Must be 0.")
	AuditDrift      = gauge("audit_drift", "Objects on the API server that the ledger does not know, in two audits in a row. Must be 0.")
	AuditTime       = gauge("last_audit_timestamp_seconds", "When the last audit ended, in Unix time.")
	AuditInterval   = gauge("audit_interval_seconds", "How long it is from one audit to the next; not served where there are none.")
)

// Shards is how many leaders there are to be: alerts compare it with how many there are.
var Shards = gauge("shards", "Parts that all pools and Clusters are served in, each by a leader of its own: 1 without --shard.")

var pools = []*prometheus.GaugeVec{
	PoolTotal, PoolAllocated, PoolAvailable, PoolOutOfRange, PoolLargestFree, PoolFragmentation, PoolCooling, PoolWaiting, PoolInFlight, PoolBlocks, PoolGrowth,
}

// ForgetPool drops the gauges of a pool that is gone.
func ForgetPool(kind, namespace, name string) {
	for _, g := range pools {
		g.DeleteLabelValues(kind, namespace, name)
	}
}

// DropPool drops all that is counted of a pool that does not exist and of which nothing is left: claims can name any pool.
func DropPool(kind, namespace, name string) {
	ForgetPool(kind, namespace, name)
	of := prometheus.Labels{"kind": kind, "namespace": namespace, "pool": name}
	for _, c := range []*prometheus.CounterVec{Grants, Releases, Refusals, Takeovers, LostTerms, Voided, Strangers, Orphans} {
		c.DeletePartialMatch(of)
	}
}

func init() {
	for _, g := range pools {
		metrics.Registry.MustRegister(g)
	}
	metrics.Registry.MustRegister(Grants, Releases, Refusals, Commits, Takeovers, LostTerms, Voided, Strangers, Orphans, Planning, WriteErrs, Fulfilment, BlockFulfilment, LeaseFulfilment,
		AuditDuplicates, AuditOrphans, AuditDrift, AuditTime, AuditInterval, Shards)
}
