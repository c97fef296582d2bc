package carve

import (
	"net/netip"
	"slices"
	"testing"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

func newAllocation(change ...func(*v1alpha1.IPAllocation)) *v1alpha1.IPAllocation {
	out := &v1alpha1.IPAllocation{Spec: v1alpha1.IPAllocationSpec{PrefixLength: ptr.To[int32](30)}}
	out.Name, out.UID = "pool-1", "uid"
	for _, f := range change {
		f(out)
	}
	return out
}

func withRecord(text string) func(*v1alpha1.IPAllocation) {
	return func(a *v1alpha1.IPAllocation) {
		metav1.SetMetaDataAnnotation(&a.ObjectMeta, v1alpha1.AddressAnnotation, text)
	}
}

func withStatus(first, last string) func(*v1alpha1.IPAllocation) {
	return func(a *v1alpha1.IPAllocation) {
		a.Status.Phase, a.Status.StartAddress, a.Status.EndAddress = v1alpha1.AllocationAllocated, first, last
	}
}

func inPhase(phase v1alpha1.AllocationPhase) func(*v1alpha1.IPAllocation) {
	return func(a *v1alpha1.IPAllocation) { a.Status.Phase = phase }
}

func withCondition(kind string, status metav1.ConditionStatus, message string) func(*v1alpha1.IPAllocation) {
	return func(a *v1alpha1.IPAllocation) {
		a.Status.Conditions = append(a.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "PoolExhausted", Message: message})
	}
}

func isRefused(message string) func(*v1alpha1.IPAllocation) {
	return withCondition(v1alpha1.ReadyCondition, metav1.ConditionFalse, message)
}

func isPinned(a *v1alpha1.IPAllocation) {
	a.Spec.PinnedRange = &v1alpha1.PinnedRange{StartAddress: "10.0.0.4", EndAddress: "10.0.0.7"}
}

// TestAllocationFromObject checks what counts as the prefix of a block: what the record and the status agree on, as any
// user can write a record.
func TestAllocationFromObject(t *testing.T) {
	const record, first, last, prefix = "10.0.0.4-10.0.0.7", "10.0.0.4", "10.0.0.7", "10.0.0.4/30"
	for name, tt := range map[string]struct {
		change             []func(*v1alpha1.IPAllocation)
		want, wantGranted  string
		recorded, prefixes int
	}{
		"new":                   {},
		"record alone":          {change: []func(*v1alpha1.IPAllocation){withRecord(record)}, recorded: 1, prefixes: 1},
		"status alone":          {change: []func(*v1alpha1.IPAllocation){withStatus(first, last)}, recorded: 1, prefixes: 1},
		"both":                  {change: []func(*v1alpha1.IPAllocation){withRecord(record), withStatus(first, last)}, want: prefix, wantGranted: prefix, recorded: 2, prefixes: 2},
		"released":              {change: []func(*v1alpha1.IPAllocation){withRecord(record), withStatus(first, last), inPhase(v1alpha1.AllocationReleased)}, want: prefix, wantGranted: prefix, recorded: 2, prefixes: 2},
		"failed":                {change: []func(*v1alpha1.IPAllocation){withRecord(record), withStatus(first, last), inPhase(v1alpha1.AllocationFailed)}, recorded: 1, prefixes: 1},
		"pending":               {change: []func(*v1alpha1.IPAllocation){withRecord(record), withStatus(first, last), inPhase(v1alpha1.AllocationPending)}, recorded: 1, prefixes: 1},
		"they differ":           {change: []func(*v1alpha1.IPAllocation){withRecord("10.0.0.8-10.0.0.11"), withStatus(first, last)}, recorded: 2, prefixes: 2},
		"not a prefix":          {change: []func(*v1alpha1.IPAllocation){withRecord("10.0.0.4-10.0.0.6"), withStatus("10.0.0.4", "10.0.0.6")}, recorded: 2},
		"another object has it": {change: []func(*v1alpha1.IPAllocation){withRecord(record), withStatus(first, last), withCondition(v1alpha1.OverlapCondition, metav1.ConditionTrue, "pool-2 has it")}, want: prefix, recorded: 2, prefixes: 2},
		"no record at all":      {change: []func(*v1alpha1.IPAllocation){withRecord("ten")}},
	} {
		t.Run(name, func(t *testing.T) {
			got := AllocationFromObject(newAllocation(tt.change...), v1alpha1.CarvedPoolFinalizer)
			for what, pair := range map[string][2]string{"prefix": {showPrefix(got.Prefix), tt.want}, "granted prefix": {showPrefix(got.GrantedPrefix()), tt.wantGranted}} {
				if pair[0] != pair[1] {
					t.Errorf("its %s is %q, not %q", what, pair[0], pair[1])
				}
			}
			if len(got.RecordedRanges) != tt.recorded || len(got.RecordedPrefixes()) != tt.prefixes {
				t.Errorf("it may have %v, as prefixes %v", got.RecordedRanges, got.RecordedPrefixes())
			}
		})
	}
}

func showPrefix(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

// TestAllocationFromObjectCopiesFields checks the fields that are copied from an object.
func TestAllocationFromObjectCopiesFields(t *testing.T) {
	o := newAllocation(isPinned, isRefused("it is full"), func(a *v1alpha1.IPAllocation) {
		a.Finalizers = []string{"other/a", v1alpha1.PodsFinalizer, "other/b"}
		a.DeletionTimestamp = &metav1.Time{}
		metav1.SetMetaDataAnnotation(&a.ObjectMeta, clusterv1.PausedAnnotation, "")
	})
	got := AllocationFromObject(o, v1alpha1.PodsFinalizer)
	if !got.HasFinalizer || !slices.Equal(got.OtherFinalizers, []string{"other/a", "other/b"}) || !got.Deleting || !got.Paused {
		t.Errorf("%+v", got)
	}
	if got.PrefixLength != 30 || got.PinnedPrefix.String() != "10.0.0.4/30" || got.RefusalReason != "PoolExhausted" || got.RefusalMessage != "it is full" {
		t.Errorf("%+v", got)
	}
	if other := AllocationFromObject(o, v1alpha1.CarvedPoolFinalizer); other.HasFinalizer || len(other.OtherFinalizers) != 3 {
		t.Errorf("of a carved pool: %+v", other)
	}
}

// TestRefusedAllocation checks which blocks are refused, so that another may replace them: those that request certain
// addresses and are refused. A refusal from before the record appeared says nothing about the record; one from after it
// does.
func TestRefusedAllocation(t *testing.T) {
	read := func(change ...func(*v1alpha1.IPAllocation)) Allocation {
		return AllocationFromObject(newAllocation(change...), v1alpha1.CarvedPoolFinalizer)
	}
	record := withRecord("10.0.0.4-10.0.0.7")
	full := isRefused("it is full")
	restored := read(full, record).WithHistory(read(full))
	for name, tt := range map[string]struct {
		block Allocation
		want  bool
	}{
		"any prefix would do":                  {block: read(full)},
		"it has a record":                      {block: read(full, record), want: true},
		"it is pinned":                         {block: read(full, isPinned), want: true},
		"it is pinned, and waits":              {block: read(isPinned)},
		"it has its prefix":                    {block: read(full, record, withStatus("10.0.0.4", "10.0.0.7"))},
		"its record has appeared":              {block: restored},
		"its record appeared a while ago":      {block: read(full, record).WithHistory(restored)},
		"it was refused anew":                  {block: read(isRefused("another has it"), record).WithHistory(restored), want: true},
		"its record appeared with the refusal": {block: read(full, record).WithHistory(read()), want: true},
		"another of its name was there":        {block: read(full, record).WithHistory(Allocation{UID: "old", RefusalMessage: "it is full"}), want: true},
		"it had a record before":               {block: read(full, record).WithHistory(read(full, record)), want: true},
	} {
		if got := tt.block.IsRefused(); got != tt.want {
			t.Errorf("%s: %v, not %v", name, got, tt.want)
		}
	}
}

// TestPrefixesOfRecords checks that a record of addresses that are no prefix is no prefix.
func TestPrefixesOfRecords(t *testing.T) {
	a := Allocation{RecordedRanges: []netipx.IPRange{netipx.MustParseIPRange("10.0.0.4-10.0.0.7"), netipx.MustParseIPRange("10.0.0.4-10.0.0.8")}}
	if got := a.RecordedPrefixes(); !slices.Equal(got, []netip.Prefix{netip.MustParsePrefix("10.0.0.4/30")}) {
		t.Errorf("%v", got)
	}
}
