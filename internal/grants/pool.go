// Package grants decides what is granted from a pool: the memory of a pool, the plan, what a commit says and what became
// of it, what a takeover finds, and what is due for each claimant. It knows neither a kind of claimants nor an API
// server: kinds say what is theirs (Kind), package allocator reads and writes. The rules that it names, R1 to R12, are in
// docs/design.md.
package grants

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/pools"
)

// Pool is one pool of a manager: its memory, which is locked to be used.
type Pool struct {
	Key    pools.Key
	memory *Memory
}

// PoolOf returns the pool that a memory is of.
func PoolOf(m *Memory) *Pool { return &Pool{m.Key, m} }

// Lock returns the memory of the pool, for this caller alone until it unlocks it.
func (p *Pool) Lock() *Memory {
	p.memory.mu.Lock()
	return p.memory
}

// Unlock lets others have the memory.
func (m *Memory) Unlock() { m.mu.Unlock() }
