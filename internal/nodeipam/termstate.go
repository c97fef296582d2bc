package nodeipam

import (
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/term"
)

// termState is whether this manager is the holder, and what calls for a takeover. A manager that is not the holder
// commits nothing, and begins no write to a Node.
type termState struct {
	// TakeoverBackoff is about the ConfigMap.
	term.TakeoverBackoff
	// isHolder reports whether this manager is the holder; wasHolder reports whether it ever was.
	isHolder, wasHolder bool
	// takeoverCount counts the takeovers that were begun.
	takeoverCount int
	// needsRecordRead reports whether the work that the last holder has left was not read yet; hasInheritedWork reports
	// whether there is some: grants in flight, or an open block that is unknown here.
	needsRecordRead, hasInheritedWork bool
	// takeoverRequested reports whether the cluster has to be taken over although no Node waits.
	takeoverRequested bool
	// needsRevalidation reports whether a Node that had CIDRs was seen without any, so that the state may be from
	// before a restore. The next reconcile takes the cluster over anew.
	needsRevalidation bool
}
