// Package dropin supports users who replace the in-cluster provider with a manager that has --serve-in-cluster-pools:
// it finds the pools that the manager would not serve, or would serve differently (CheckPools), and returns the pools
// to the in-cluster provider (HandBack).
//
// A hand-back is safe where nothing is left that the in-cluster provider does not count: it counts the IPAddresses that
// name its own pools, and nothing else. So no claim or IPAllocation may have an address under the name of a mirror, no
// grant may be in flight, and the user must consent to the loss of the rests and held ranges in the status of a mirror.
package dropin
