// Package dropin is what whoever swaps the in-cluster provider for a manager with --serve-in-cluster-pools wants to
// know, and needs to do: which pools that manager would not serve, or would serve differently (Check), and how to give
// the pools back (HandBack).
//
// Going back is safe where nothing is left that the in-cluster provider does not count: it counts the IPAddresses that
// name its own pools, and nothing else. So nobody may have anything under the name of a mirror, no grant may be on its
// way, and what rests or is held in the status of a mirror has to be given up knowingly.
package dropin
