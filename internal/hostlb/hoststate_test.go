package hostlb

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/api/v1alpha1"
)

// testHost is a HostState with a clock that the test moves.
type testHost struct {
	*HostState
	*WithT

	now time.Time
}

// newTestHost returns a host that is the only one to have an address, and has written its heartbeat.
func newTestHost(t *testing.T) *testHost {
	t.Helper()
	h := &testHost{NewHostState(hostsOf(1)[0], DefaultTiming()), NewWithT(t), start}
	h.read("", "", "")
	h.answer(h.expectOp(WriteHeartbeat), OpResult{})
	return h
}

// read has the cache show a lock.
func (h *testHost) read(version, holder, left string) {
	locks := map[netip.Addr]ObservedLock{}
	if version != "" {
		locks[addresses[0]] = ObservedLock{Version: version, Holder: holder, ReleasedBy: left}
	}
	h.ObserveCache(h.now, []WantedAddress{{Address: addresses[0], LeaseUID: "l"}}, locks, nil)
}

// expectOp expects that the host runs one operation of a kind now, beside others, and returns it.
func (h *testHost) expectOp(kind OpKind) *Op {
	ops, _ := h.PlanOps(h.now)
	for i := range ops {
		if ops[i].Kind == kind {
			return &ops[i]
		}
	}
	h.Expect(ops).To(ContainElement(HaveField("Kind", kind)), "it does not %s", kind)
	return nil
}

func (h *testHost) expectOps(not types.GomegaMatcher) {
	ops, _ := h.PlanOps(h.now)
	h.Expect(ops).To(not)
}

func (h *testHost) answer(op *Op, r OpResult) { h.CompleteOp(h.now, op, r) }

// TestUnansweredHeartbeat checks that a host whose heartbeat is not answered plans again when it may be taken for dead,
// and not again and again before that: the API server may be away for long. The answer, or its failure, wakes the host
// earlier.
func TestUnansweredHeartbeat(t *testing.T) {
	h := newTestHost(t)
	h.ObserveCache(h.now, nil, nil, nil)
	h.now = h.now.Add(h.Timing.refreshInterval())
	beat := h.expectOp(WriteHeartbeat)
	for range 50 {
		h.now = h.now.Add(tick)
		ops, again := h.PlanOps(h.now)
		h.Expect(ops).To(BeEmpty())
		h.Expect(again).To(Equal(start.Add(h.Timing.Lifetime)))
	}
	h.answer(beat, OpResult{Err: errInjected})
	h.expectOp(WriteHeartbeat)
}

// TestSilenceWhileUnanswered checks that the silence of another host counts only while the host is answered itself. The
// lock of a host that is silent for 12.5 s is therefore taken later: after a lapse the silence counts again from the
// end of it, and without a lapse the time without an answer is left out.
func TestSilenceWhileUnanswered(t *testing.T) {
	for name, c := range map[string]struct {
		// unanswered is for how long no heartbeat of the host is answered, and before is when that begins; taken is when
		// the lock is taken.
		before, unanswered, taken time.Duration
	}{
		"answered all the time": {before: 0, unanswered: 0, taken: 12500 * time.Millisecond},
		"a lapse":               {before: 2 * time.Second, unanswered: time.Minute, taken: 62*time.Second + 12500*time.Millisecond},
		"a short lapse":         {before: 2 * time.Second, unanswered: 10 * time.Second, taken: 12*time.Second + 12500*time.Millisecond},
		"no lapse":              {before: 2 * time.Second, unanswered: 7 * time.Second, taken: 19 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := hostsOf(2)
			h := &testHost{NewHostState(hosts[0], DefaultTiming()), NewWithT(t), start}
			locks := map[netip.Addr]ObservedLock{addresses[0]: {Version: "1", Holder: hosts[1].Name}}
			for taken := false; !taken; h.now = h.now.Add(tick) {
				h.ObserveCache(h.now, []WantedAddress{{Address: addresses[0], LeaseUID: "l"}}, locks, []ObservedHost{{hosts[1], "1"}})
				ops, _ := h.PlanOps(h.now)
				since := h.now.Sub(start)
				for i := range ops {
					switch op := &ops[i]; {
					case op.Kind == WriteHeartbeat && since >= c.before && since < c.before+c.unanswered:
						h.answer(op, OpResult{Err: errors.New("no answer")})
					case op.Kind == AcquireLock:
						taken = true
						h.Expect(since).To(BeNumerically("~", c.taken, time.Second))
					default:
						h.answer(op, OpResult{})
					}
				}
				if since > 2*time.Minute {
					t.Fatal("the lock is never taken")
				}
			}
		})
	}
}

// TestLockConfirmation checks when a lock is confirmed, and what ends that.
func TestLockConfirmation(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*testHost)
		sure bool
	}{
		"of what it has written":                {do: func(*testHost) {}, sure: true},
		"whatever a cache shows that is behind": {do: func(h *testHost) { h.read("1", "h9", "") }, sure: true},
		"not when another host has it":          {do: func(h *testHost) { h.read("9", "h9", "") }},
		"not after its heartbeat has lapsed": {do: func(h *testHost) {
			h.now = h.now.Add(11 * time.Second)
			h.answer(h.expectOp(WriteHeartbeat), OpResult{})
		}},
		"not after the machine was suspended": {do: func(h *testHost) {
			h.HandleResume()
			h.now = h.now.Add(4 * time.Second)
			h.answer(h.expectOp(WriteHeartbeat), OpResult{})
		}},
		"still when a heartbeat is not answered in D/2": {do: func(h *testHost) {
			h.now = h.now.Add(5 * time.Second)
			h.answer(h.expectOp(WriteHeartbeat), OpResult{})
		}, sure: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
			c.do(h)
			v := h.BuildView(h.now)
			h.Expect(v.Locks[addresses[0]].Confirmed).To(Equal(c.sure))
		})
	}
	t.Run("not where the lease was gone after it", func(t *testing.T) {
		h := newTestHost(t)
		h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5", Err: ErrLeaseGone})
		h.Expect(h.BuildView(h.now).Locks[addresses[0]]).To(And(HaveField("Confirmed", false), HaveField("Holder", "h0")))
	})
	t.Run("not once it has begun to give it up", func(t *testing.T) {
		h := newTestHost(t)
		h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
		h.ObserveCache(h.now, nil, nil, nil)
		left := h.expectOp(ReleaseUnconfirmed)
		h.answer(left, OpResult{Err: errors.New("no answer")})
		h.now = h.now.Add(2 * time.Second)
		h.read("5", "h0", "")
		h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "6"})
		h.answer(h.expectOp(ProbeAddress), OpResult{})
		h.Expect(h.expectOp(AddAddress).Address).To(Equal(addresses[0]))
	})
}

// TestAddressIsAddedOnce checks that an address is added once and stays as it is, however often its lease is read, and
// whatever ports of it come and go.
func TestAddressIsAddedOnce(t *testing.T) { // H11
	h := newTestHost(t)
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	h.answer(h.expectOp(ProbeAddress), OpResult{})
	h.answer(h.expectOp(AddAddress), OpResult{})
	for i := range 60 {
		h.SetManagedAddresses([]netip.Addr{addresses[0]})
		h.read("5", "h0", "")
		h.SetPortReports(map[netip.Addr][]PortReport{addresses[0]: make([]PortReport, i%4)})
		ops, _ := h.PlanOps(h.now)
		for k := range ops {
			if kind := ops[k].Kind; kind == AddAddress || kind == RemoveAddress || kind == AcquireLock || kind == ProbeAddress {
				t.Fatalf("after %d s: %s", i, kind)
			}
			if ops[k].Kind == WriteHeartbeat || ops[k].Kind == RefreshAddress || ops[k].Kind == WriteReport {
				h.answer(&ops[k], OpResult{LockVersion: "5"})
			}
		}
		h.now = h.now.Add(time.Second)
	}
}

// TestReleasedLockRecordsProbe checks that a lock that is released records whether the address was probed.
func TestReleasedLockRecordsProbe(t *testing.T) {
	h := newTestHost(t)
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	h.ObserveCache(h.now, nil, nil, nil)
	h.answer(h.expectOp(ReleaseUnconfirmed), OpResult{LockVersion: "6"})
	h.Expect(h.BuildView(h.now).Locks[addresses[0]]).To(And(HaveField("Holder", ""), HaveField("ReleasedBy", "h0")))

	h = newTestHost(t)
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	h.ObserveCache(h.now, []WantedAddress{{Address: addresses[0], LeaseUID: "l", LeaseDeleting: true}}, nil, nil)
	h.answer(h.expectOp(ProbeAddress), OpResult{})
	h.answer(h.expectOp(ReleaseConfirmed), OpResult{LockVersion: "6"})
	h.Expect(h.BuildView(h.now).Locks[addresses[0]]).To(And(HaveField("Holder", ""), HaveField("ReleasedBy", "")))
}

// TestOneOperationAtATime checks that one write of a lock, and one probe, is in flight at a time, and that a failed one
// is repeated after a while.
func TestOneOperationAtATime(t *testing.T) {
	h := newTestHost(t)
	take := h.expectOp(AcquireLock)
	h.expectOps(Not(ContainElement(HaveField("Kind", AcquireLock))))
	h.answer(take, OpResult{Err: ErrLockChanged})
	h.expectOps(Not(ContainElement(HaveField("Kind", AcquireLock))))
	h.now = h.now.Add(time.Second)
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	ask := h.expectOp(ProbeAddress)
	h.expectOps(Not(ContainElement(HaveField("Kind", ProbeAddress))))
	h.answer(ask, OpResult{ReplyMAC: "02::9"})
	report := h.expectOp(WriteReport)
	h.expectOps(Not(ContainElement(HaveField("Kind", AddAddress))))
	h.Expect(report.Report).To(And(HaveField("Reason", v1alpha1.AddressInUseReason), HaveField("Message", ContainSubstring("02::9")), HaveField("Announced", false)))
	h.answer(report, OpResult{LockVersion: "6"})
	h.expectOps(BeEmpty())
}

// newServingHost returns a host that has an address, and has announced and reported it.
func newServingHost(t *testing.T) *testHost {
	t.Helper()
	h := newTestHost(t)
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	h.answer(h.expectOp(ProbeAddress), OpResult{})
	h.answer(h.expectOp(AddAddress), OpResult{})
	h.SetManagedAddresses(addresses[:1])
	ops, _ := h.PlanOps(h.now)
	h.Expect(ops).To(ContainElement(And(HaveField("Kind", AnnounceAddress), HaveField("AnnounceCount", initialAnnouncements))))
	for i := range ops {
		if ops[i].Kind == WriteReport {
			h.answer(&ops[i], OpResult{LockVersion: "6"})
		}
	}
	return h
}

// renewAll renews what the host has, and returns how often it announces its address.
func (h *testHost) renewAll() (announces int) {
	ops, _ := h.PlanOps(h.now)
	for i := range ops {
		switch ops[i].Kind {
		case AnnounceAddress:
			announces++
		case WriteHeartbeat, RefreshAddress:
			h.answer(&ops[i], OpResult{})
		case WriteReport: // it stays in flight
		default:
			h.Expect(ops[i].Kind).To(Equal(WriteHeartbeat), "it is at rest")
		}
	}
	return announces
}

// advance lets seconds pass, and returns the seconds in which the host announces its address.
func (h *testHost) advance(seconds int) (announces []int) {
	for range seconds {
		h.now = h.now.Add(time.Second)
		h.read("6", "h0", "")
		for range h.renewAll() {
			announces = append(announces, int(h.now.Sub(start)/time.Second))
		}
	}
	return announces
}

// TestAddressIsAnnouncedAgain checks that an address that stays on the host is announced again: soon, and then each
// minute.
func TestAddressIsAnnouncedAgain(t *testing.T) { // H31
	h := newServingHost(t)
	h.Expect(h.advance(200)).To(Equal([]int{1, 2, 5, 10, 70, 130, 190}))
	h.SetManagedAddresses(nil)
	h.Expect(h.announceStates).To(BeEmpty())
	h.SetManagedAddresses(addresses[:1]) // from before a restart
	h.Expect(h.expectOp(AnnounceAddress).AnnounceCount).To(Equal(initialAnnouncements))
	h.Stopping = true
	h.now = h.now.Add(time.Second)
	h.expectOps(Not(ContainElement(HaveField("Kind", AnnounceAddress))))
}

// TestUnconfirmedLockAnnouncesNothing checks that a host announces nothing while it is not sure of its lock: another
// host may have the address.
func TestUnconfirmedLockAnnouncesNothing(t *testing.T) {
	h := newServingHost(t)
	h.now = h.now.Add(11 * time.Second) // the API server is away
	h.expectOps(Not(ContainElement(HaveField("Kind", AnnounceAddress))))
}

// TestEndlessClaimsAreAnswered checks that a machine that claims the address of a host every second is answered for as
// long as it does, once in D and a few times after that.
func TestEndlessClaimsAreAnswered(t *testing.T) {
	h := newServingHost(t)
	h.advance(20)
	var defended, announces []int
	for second := range 60 {
		if h.ObserveClaim(h.now, addresses[0], "02::9") {
			defended = append(defended, second)
		}
		h.Expect(h.ObserveClaim(h.now, addresses[0], "02::8")).To(BeFalse(), "the same for another one")
		for range h.renewAll() {
			announces = append(announces, second%10)
		}
		h.now = h.now.Add(time.Second)
		h.read("6", "h0", "")
	}
	h.Expect(announces).To(Equal(slices.Repeat([]int{0, 1, 2, 5}, 6)))
	h.Expect(defended).To(Equal([]int{0, 10, 20, 30, 40, 50}))
}

// TestOwnAddresses checks that hosts report an address that one of them has itself as in use: a machine that answers
// for it is no host that is about to release it. The manager takes the next address then.
func TestOwnAddresses(t *testing.T) {
	own := func(h Host) Host { h.OwnAddresses = addresses[:1]; return h }
	hosts := hostsOf(2)
	for i := range hosts {
		for j := range hosts[i].Networks {
			hosts[i].Networks[j].MAC = fmt.Sprintf("02::%d", i)
		}
	}
	for name, c := range map[string]struct {
		self, other Host
		answers     string
		want        string
	}{
		"its own":       {self: own(hosts[0]), other: hosts[1], want: "host h0 has 192.0.2.10 itself"},
		"another one's": {self: hosts[0], other: own(hosts[1]), answers: hosts[1].Networks[0].MAC, want: "host h1 has 192.0.2.10 itself"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.Self = c.self
			h.ObserveCache(h.now, []WantedAddress{{Address: addresses[0], LeaseUID: "l"}}, nil, []ObservedHost{{Host: c.other, Version: "1"}})
			h.now = h.now.Add(h.Timing.RankDelay)
			h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
			h.answer(h.expectOp(ProbeAddress), OpResult{ReplyMAC: c.answers})
			report := h.expectOp(WriteReport)
			h.Expect(report.Report).To(And(HaveField("Reason", v1alpha1.AddressInUseReason), HaveField("Message", ContainSubstring(c.want)), HaveField("Announced", false)))
			h.expectOps(Not(ContainElement(HaveField("Kind", AddAddress))))
			h.now = h.now.Add(5 * time.Second)
			h.expectOps(Not(ContainElement(HaveField("Kind", ProbeAddress))))
		})
	}
	// A host that answers for an address that is not its own will release it, so the other one waits for that.
	h := newTestHost(t)
	h.ObserveCache(h.now, []WantedAddress{{Address: addresses[0], LeaseUID: "l"}}, nil, []ObservedHost{{Host: hosts[1], Version: "1"}})
	h.now = h.now.Add(h.Timing.RankDelay)
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	h.answer(h.expectOp(ProbeAddress), OpResult{ReplyMAC: hosts[1].Networks[0].MAC})
	h.Expect(h.expectOp(WriteReport).Report).To(HaveField("Reason", v1alpha1.ContestedReason))
}

// TestClaimOfManagedAddressIsReported checks that a claim of an address that the host has is reported for a minute, and
// that the address is announced again once in D.
func TestClaimOfManagedAddressIsReported(t *testing.T) {
	h := newTestHost(t)
	h.Expect(h.ObserveClaim(h.now, addresses[0], "02::9")).To(BeFalse(), "it is not here")
	h.answer(h.expectOp(AcquireLock), OpResult{LockVersion: "5"})
	h.answer(h.expectOp(ProbeAddress), OpResult{})
	h.answer(h.expectOp(AddAddress), OpResult{})
	h.SetManagedAddresses(addresses[:1])
	h.answer(h.expectOp(WriteReport), OpResult{LockVersion: "6"})
	h.Expect(h.ObserveClaim(h.now, addresses[0], "02::9")).To(BeTrue())
	h.Expect(h.ObserveClaim(h.now, addresses[0], "02::9")).To(BeFalse())
	report := h.expectOp(WriteReport)
	h.Expect(report.Report).To(And(HaveField("Reason", v1alpha1.ContestedReason), HaveField("Announced", true)))
	h.answer(report, OpResult{LockVersion: "7"})
	h.now = h.now.Add(time.Minute)
	h.answer(h.expectOp(WriteHeartbeat), OpResult{})
	take := h.expectOp(AcquireLock) // the heartbeat lapsed for a minute: the host takes the lock again, and keeps its report
	h.Expect(take.Report).To(HaveField("Reason", v1alpha1.ContestedReason))
	h.answer(take, OpResult{LockVersion: "8"})
	h.Expect(h.expectOp(WriteReport).Report).To(HaveField("Reason", ""))
	h.Expect(h.ServedAddresses()).To(Equal(map[netip.Addr]string{addresses[0]: "l"}))
}
