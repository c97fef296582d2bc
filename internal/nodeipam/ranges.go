package nodeipam

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/fence"
	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/internal/podcidr"
)

// knownRanges are the objects that CIDRs are granted from, and the CIDRs of Services, which no Node is granted. The
// spec of an object never changes, so its compiled range stays. knownBlocks sets what each range has of blocks, and
// blockPlanner sets whether it can grow.
type knownRanges struct {
	objects map[podcidr.Ref]RangeObject
	// sorted are the valid ranges of the objects in the order of SortRanges; byName are the same ranges by name. Both
	// are nil after a change of the objects, until validRanges fills them.
	sorted []*podcidr.Range
	byName map[string][]*podcidr.Range
	// useless has, for each range that was checked, whether no Node can get anything of it, as Services have all of it.
	useless map[*podcidr.Range]bool
	// closedByLiveRead are the objects that a live read has shown to be closing.
	closedByLiveRead map[podcidr.Ref]bool
	// serviceCIDRs are the CIDRs of Services.
	serviceCIDRs []netip.Prefix
	// primaryFamily is the family of the first CIDR of a Node.
	primaryFamily podcidr.Family
}

// describeRanges returns the names of ranges and for how many Nodes each is, and how many of them Services have
// completely.
func (kr *knownRanges) describeRanges(refs []podcidr.Ref) (text string, useless int) {
	var out []string
	for _, ref := range refs {
		switch o := kr.objects[ref]; {
		case o.Range == nil:
		case kr.isUselessRange(o.Range):
			useless++
			out = append(out, ref.Name+" (all of it is for Services)")
		default:
			out = append(out, fmt.Sprintf("%s (%s)", ref.Name, formatNodeCount(o.Range.CurrentCapacity(), "", "")))
		}
	}
	return joinNames(out), useless
}

// groupForBlock returns the group of a block: that of the ClusterCIDR that it names, if that wants blocks like it.
func (kr *knownRanges) groupForBlock(b Block, on fence.OpenRange, open bool) blockGroup {
	name := cmp.Or(on.ClusterCIDRName, b.ClusterCIDRName)
	for _, o := range kr.objects {
		for f, source := range o.BlockSources {
			fits := source != nil && o.Name == name && source.matchesBlock(b)
			if gone := open && b.UID == "" && source != nil && o.Name == name && podcidr.FamilyForPrefix(on.CIDRs[0]) == podcidr.Family(f); fits || gone {
				return blockGroup{name, podcidr.Family(f)}
			}
		}
	}
	return blockGroup{}
}

// objectsByGroup returns the objects that have pools, by group.
func (kr *knownRanges) objectsByGroup() map[blockGroup]RangeObject {
	out := map[blockGroup]RangeObject{}
	for _, o := range kr.objects {
		for f, source := range o.BlockSources {
			if source != nil && o.Range != nil {
				out[blockGroup{o.Name, podcidr.Family(f)}] = o
			}
		}
	}
	return out
}

// isFromSamePool reports whether a block is from the same pool as an open one: the same addresses of another pool are
// different addresses.
func (kr *knownRanges) isFromSamePool(on fence.OpenRange, b Block) bool {
	for _, o := range kr.objects {
		if source := o.BlockSources[podcidr.FamilyForPrefix(on.CIDRs[0])]; o.Name == on.ClusterCIDRName && source != nil && source.PoolRef == b.PoolRef {
			return true
		}
	}
	return false
}

// validRanges returns the ranges of the valid objects, in the order of SortRanges.
func (kr *knownRanges) validRanges() []*podcidr.Range {
	if kr.sorted != nil {
		return kr.sorted
	}
	var out []*podcidr.Range
	for _, o := range kr.objects {
		if o.Range != nil {
			out = append(out, o.Range)
		}
	}
	kr.sorted, kr.byName = podcidr.SortRanges(out), map[string][]*podcidr.Range{}
	for _, r := range kr.sorted {
		kr.byName[r.Name] = append(kr.byName[r.Name], r)
	}
	return kr.sorted
}

// hasSelectors reports whether labels decide what Nodes get, as an object is for certain Nodes.
func (kr *knownRanges) hasSelectors() bool {
	return slices.ContainsFunc(kr.validRanges(), func(r *podcidr.Range) bool { return !r.Closing && r.HasSelector() })
}

// marksToClose returns the marks of the objects that have to be closed.
func (kr *knownRanges) marksToClose() map[podcidr.Ref]string {
	out := map[podcidr.Ref]string{}
	for ref, o := range kr.objects {
		if o.Closing {
			out[ref] = o.EntryMark
		}
	}
	return out
}

// findOverlaps returns the names of the first few other ranges with some of the addresses, and the last CIDR of
// Services that overlaps the range.
func (kr *knownRanges) findOverlaps(r *podcidr.Range, all []*podcidr.Range) (names []string, service string) {
	for _, other := range all {
		if len(names) <= maxNamesShown && other.Ref != r.Ref {
			names = append(names, other.Name)
		}
	}
	for _, p := range kr.serviceCIDRs {
		if r.OverlapsAny([]netip.Prefix{p}) {
			service = p.String()
		}
	}
	return names, service
}

// isUselessRange reports whether no Node can ever get anything of a range, as Services have all of it.
func (kr *knownRanges) isUselessRange(r *podcidr.Range) bool {
	if useless, known := kr.useless[r]; known {
		return useless
	}
	empty := podcidr.NewAllocations(kr.serviceCIDRs)
	empty.TrackRanges(r)
	closed := slices.ContainsFunc(r.Families(), func(f podcidr.Family) bool { return len(r.AllocatableCIDRs(f)) == 0 })
	kr.useless[r] = len(kr.serviceCIDRs) > 0 && !closed && empty.CountFree(r) == 0
	return kr.useless[r]
}

// rangeForNode returns the range that a Node counts for: the one that it names, otherwise the first that overlaps its
// CIDRs.
func (kr *knownRanges) rangeForNode(n *podcidr.Node) *podcidr.Range {
	if named := kr.rangeByName(n.ClusterCIDRName, n.CIDRs); named != nil {
		return named
	}
	for _, r := range kr.validRanges() {
		if r.OverlapsAny(n.CIDRs) {
			return r
		}
	}
	return nil
}

// formatRangeCIDRs returns a range as the value of a metric label.
func formatRangeCIDRs(r *podcidr.Range) string {
	named := strings.Trim(fmt.Sprint(r.StaticCIDRs()), "[]")
	if r.IsElastic(podcidr.IPv4) || r.IsElastic(podcidr.IPv6) { // blocks come and go
		named = strings.TrimSpace(named + " blocks")
	}
	return named
}

// rangeByName returns the range of a name, if it overlaps the CIDRs.
func (kr *knownRanges) rangeByName(from string, cidrs []netip.Prefix) *podcidr.Range {
	kr.validRanges() // this fills byName
	for _, r := range kr.byName[from] {
		if r.OverlapsAny(cidrs) {
			return r
		}
	}
	return nil
}

// setObjects sets the objects that CIDRs are granted from. It reports whether what may be granted from has changed,
// whether an object is gone, and whether it has to be checked again that our finalizer is on the objects.
func (kr *knownRanges) setObjects(objects []RangeObject) (changed, gone, needsCheck bool) {
	next := make(map[podcidr.Ref]RangeObject, len(objects))
	for _, o := range objects {
		old, known := kr.objects[o.Ref]
		if known && old.Range != nil {
			o.Range = old.Range // a spec never changes
		}
		if o.Range != nil {
			closing := o.Closing || kr.closedByLiveRead[o.Ref]
			changed = changed || closing != o.Range.Closing
			o.Range.Closing = closing
		}
		changed = changed || !known
		needsCheck = needsCheck || !known || old.HasFinalizer != o.HasFinalizer
		next[o.Ref] = o
	}
	for ref := range kr.objects {
		if _, ok := next[ref]; !ok {
			gone = true
			delete(kr.closedByLiveRead, ref)
		}
	}
	kr.objects = next
	if changed || gone {
		kr.sorted, kr.byName = nil, nil
	}
	return changed, gone, needsCheck
}

// setServiceCIDRs sets the CIDRs of Services, and reports whether they have changed.
func (kr *knownRanges) setServiceCIDRs(services []netip.Prefix) (changed bool) {
	if slices.Equal(kr.serviceCIDRs, services) {
		return false
	}
	kr.serviceCIDRs, kr.primaryFamily = services, podcidr.IPv4
	if len(services) > 0 && !services[0].Addr().Is4() {
		kr.primaryFamily = podcidr.IPv6
	}
	return true
}

// closeRange records that a live read has shown an object to be closing.
func (kr *knownRanges) closeRange(ref podcidr.Ref) {
	kr.closedByLiveRead[ref] = true
	if o := kr.objects[ref]; o.Range != nil {
		o.Range.Closing = true
	}
}
