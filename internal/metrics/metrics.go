// Package metrics holds the Prometheus metrics of the manager. docs/metrics.md lists them.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var poolLabels = []string{"kind", "namespace", "pool"}

// metricsNamespace is the first part of every metric name.
const metricsNamespace = "butler_ipam"

func newGauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: metricsNamespace, Name: name, Help: help}, labels)
}

func newCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metricsNamespace, Name: name, Help: help}, labels)
}

// Gauges of a pool, as in its status.
var (
	PoolTotal         = newGauge("pool_total_addresses", "Addresses the pool can hand out at all.", poolLabels...)
	PoolAllocated     = newGauge("pool_allocated_addresses", "Addresses in use or granted.", poolLabels...)
	PoolAvailable     = newGauge("pool_available_addresses", "Addresses that can be handed out now.", poolLabels...)
	PoolOutOfRange    = newGauge("pool_out_of_range_addresses", "Addresses in use that the spec no longer covers.", poolLabels...)
	PoolLargestFree   = newGauge("pool_largest_free_block", "Addresses of the largest contiguous free block.", poolLabels...)
	PoolFragmentation = newGauge("pool_fragmentation_ratio", "0 where all free addresses are contiguous, towards 1 the more they are scattered.", poolLabels...)
	PoolCooling       = newGauge("pool_cooling_ranges", "Released ranges that cool before they are granted to another claim.", poolLabels...)
	PoolWaiting       = newGauge("pool_waiting_claims", "Claims and allocations that wait for addresses.", poolLabels...)
	PoolBlocks        = newGauge("pool_blocks", "Blocks that a carved pool has open. Other pools have no such series.", poolLabels...)
	PoolGrowth        = newGauge("pool_growth_addresses", "Addresses of the blocks that a carved pool may have yet. 0, if it gets none now.", poolLabels...)
	PoolInFlight      = newGauge("pool_grants_in_flight", "Grants whose IPAddress, or record on an IPAllocation, is not confirmed yet.", poolLabels...)
)

// Counters of the grant protocol.
var (
	GrantedAddresses    = newCounter("grants_total", "Addresses granted to claims.", poolLabels...)
	ReleasedAddresses   = newCounter("releases_total", "Addresses released by claims.", poolLabels...)
	ClaimRefusals       = newCounter("refusals_total", "Times a condition reported that a claim gets no address, by reason.", append(poolLabels, "reason")...)
	PoolCommits         = newCounter("commits_total", "Commits of grants to a pool's status, by outcome: written, conflict or error.", "outcome")
	PoolTakeovers       = newCounter("takeovers_total", "Times this manager took a pool over.", poolLabels...)
	LostTerms           = newCounter("lost_terms_total", "Times another manager took a pool from this one.", poolLabels...)
	VoidedAddresses     = newCounter("voided_addresses_total", "IPAddresses removed because the claim they were made for is gone.", poolLabels...)
	ForeignAddresses    = newCounter("stranger_addresses_total", "IPAddresses that another provider wrote while this manager served the pool. Must be 0.", poolLabels...)
	OrphanedAllocations = newCounter("orphaned_allocations_total", "IPAllocations deleted because their Cluster is gone.", poolLabels...)
	PlanningSeconds     = newCounter("planning_seconds_total", "Time spent on planning grants.")
	WriteErrors         = newCounter("write_errors_total", "Failed writes of claims and IPAddresses, by step; each is tried again.", "step")
)

// ClaimFulfilment is the time from the creation of a claim to its Ready condition.
var ClaimFulfilment = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "claim_fulfilment_seconds",
	Help:    "Time from the creation of a claim to its address.",
	Buckets: []float64{.025, .05, .1, .2, .34, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// AllocationFulfilment is the time from the creation of an IPAllocation to its Ready condition.
var AllocationFulfilment = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "allocation_fulfilment_seconds",
	Help:    "Time from the creation of an IPAllocation to its block.",
	Buckets: []float64{.025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// LeaseFulfilment is the time from the creation of an IPLease to its Ready condition.
var LeaseFulfilment = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: metricsNamespace, Name: "lease_fulfilment_seconds",
	Help:    "Time from the creation of an IPLease to its address.",
	Buckets: []float64{.025, .05, .1, .2, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
})

// FulfilmentForKind returns ClaimFulfilment for claims, AllocationFulfilment for IPAllocations, and LeaseFulfilment for
// IPLeases.
func FulfilmentForKind(kind string) prometheus.Observer {
	switch kind {
	case "IPAllocation":
		return AllocationFulfilment
	case "IPLease":
		return LeaseFulfilment
	}
	return ClaimFulfilment
}

// Results of the periodic audit. All must be 0.
var (
	AuditDuplicates = newGauge("audit_duplicate_addresses", "Addresses that two living claims or allocations have. Must be 0.")
	AuditOrphans    = newGauge("audit_orphaned_addresses", "IPAddresses whose claim does not exist, found by two audits in a row. Must be 0.")
	AuditDrift      = newGauge("audit_drift", "Objects on the API server that the ledger does not know, in two audits in a row. Must be 0.")
	LastAuditTime   = newGauge("last_audit_timestamp_seconds", "When the last audit ended, in Unix time.")
	AuditInterval   = newGauge("audit_interval_seconds", "How long it is from one audit to the next; not served where there are none.")
)

// ShardCount is the number of leaders that there should be: alerts compare it with the number of leaders that there
// are.
var ShardCount = newGauge("shards", "Parts that all pools and Clusters are served in, each by a leader of its own: 1 without --shard.")

var poolGauges = []*prometheus.GaugeVec{
	PoolTotal, PoolAllocated, PoolAvailable, PoolOutOfRange, PoolLargestFree, PoolFragmentation, PoolCooling, PoolWaiting, PoolInFlight, PoolBlocks, PoolGrowth,
}

// DeletePoolGauges deletes the gauges of a pool that is gone.
func DeletePoolGauges(kind, namespace, name string) {
	for _, g := range poolGauges {
		g.DeleteLabelValues(kind, namespace, name)
	}
}

// DeletePoolMetrics deletes all series of a pool that does not exist and has nothing left: claims can name any pool.
func DeletePoolMetrics(kind, namespace, name string) {
	DeletePoolGauges(kind, namespace, name)
	of := prometheus.Labels{"kind": kind, "namespace": namespace, "pool": name}
	for _, c := range []*prometheus.CounterVec{GrantedAddresses, ReleasedAddresses, ClaimRefusals, PoolTakeovers, LostTerms, VoidedAddresses, ForeignAddresses, OrphanedAllocations} {
		c.DeletePartialMatch(of)
	}
}

func init() {
	for _, g := range poolGauges {
		metrics.Registry.MustRegister(g)
	}
	metrics.Registry.MustRegister(GrantedAddresses, ReleasedAddresses, ClaimRefusals, PoolCommits, PoolTakeovers, LostTerms, VoidedAddresses, ForeignAddresses, OrphanedAllocations, PlanningSeconds, WriteErrors, ClaimFulfilment, AllocationFulfilment, LeaseFulfilment,
		AuditDuplicates, AuditOrphans, AuditDrift, LastAuditTime, AuditInterval, ShardCount)
}
