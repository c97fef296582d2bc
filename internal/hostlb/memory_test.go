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

// told is a host with a memory, and a clock that stands still until it is moved.
type told struct {
	*Memory
	*WithT

	now time.Time
}

// newTold is a host that alone is to have an address, and has written its heartbeat.
func newTold(t *testing.T) *told {
	t.Helper()
	h := &told{NewMemory(hostsOf(1)[0], DefaultTiming()), NewWithT(t), start}
	h.read("", "", "")
	h.answer(h.next(Beat), Result{})
	return h
}

// read has the cache show a lock.
func (h *told) read(version, holder, left string) {
	locks := map[netip.Addr]ReadLock{}
	if version != "" {
		locks[addresses[0]] = ReadLock{Version: version, Holder: holder, Left: left}
	}
	h.Read(h.now, []Wanted{{Address: addresses[0], Lease: "l"}}, locks, nil)
}

// next expects that a host does one thing of a kind now, beside others.
func (h *told) next(kind Kind) *Op {
	ops, _ := h.Next(h.now)
	for i := range ops {
		if ops[i].Kind == kind {
			return &ops[i]
		}
	}
	h.Expect(ops).To(ContainElement(HaveField("Kind", kind)), "it does not %s", kind)
	return nil
}

func (h *told) does(not types.GomegaMatcher) {
	ops, _ := h.Next(h.now)
	h.Expect(ops).To(not)
}

func (h *told) answer(op *Op, r Result) { h.Done(h.now, op, r) }

// A host whose heartbeat is not answered looks again when it may be taken for dead, and not at once, again and again: the API server
// may be away for long. The answer, or that there is none, wakes it before.
func TestUnansweredHeartbeat(t *testing.T) {
	h := newTold(t)
	h.Read(h.now, nil, nil, nil)
	h.now = h.now.Add(h.Timing.refresh())
	beat := h.next(Beat)
	for range 50 {
		h.now = h.now.Add(tick)
		ops, again := h.Next(h.now)
		h.Expect(ops).To(BeEmpty())
		h.Expect(again).To(Equal(start.Add(h.Timing.Lifetime)))
	}
	h.answer(beat, Result{Err: errTrouble})
	h.next(Beat)
}

// The silence of another host counts only while the host is answered itself, so the lock of one that is silent for 12.5 s is taken
// that much later: by all of it after a lapse, by what it was not answered for before one.
func TestSilenceWhileUnanswered(t *testing.T) {
	for name, c := range map[string]struct {
		// unanswered is for how long no heartbeat of the host is answered; what is before it and after it is seconds.
		before, unanswered, taken time.Duration
	}{
		"answered all the time": {before: 0, unanswered: 0, taken: 12500 * time.Millisecond},
		"a lapse":               {before: 2 * time.Second, unanswered: time.Minute, taken: 62*time.Second + 12500*time.Millisecond},
		"a short lapse":         {before: 2 * time.Second, unanswered: 10 * time.Second, taken: 12*time.Second + 12500*time.Millisecond},
		"no lapse":              {before: 2 * time.Second, unanswered: 7 * time.Second, taken: 19 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			hosts := hostsOf(2)
			h := &told{NewMemory(hosts[0], DefaultTiming()), NewWithT(t), start}
			locks := map[netip.Addr]ReadLock{addresses[0]: {Version: "1", Holder: hosts[1].Name}}
			for taken := false; !taken; h.now = h.now.Add(tick) {
				h.Read(h.now, []Wanted{{Address: addresses[0], Lease: "l"}}, locks, []ReadHost{{hosts[1], "1"}})
				ops, _ := h.Next(h.now)
				since := h.now.Sub(start)
				for i := range ops {
					switch op := &ops[i]; {
					case op.Kind == Beat && since >= c.before && since < c.before+c.unanswered:
						h.answer(op, Result{Err: errors.New("no answer")})
					case op.Kind == Take:
						taken = true
						h.Expect(since).To(BeNumerically("~", c.taken, time.Second))
					default:
						h.answer(op, Result{})
					}
				}
				if since > 2*time.Minute {
					t.Fatal("the lock is never taken")
				}
			}
		})
	}
}

// What a host is sure of, and what ends that.
func TestSure(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*told)
		sure bool
	}{
		"of what it has written":                        {do: func(*told) {}, sure: true},
		"whatever a cache shows that is behind":         {do: func(h *told) { h.read("1", "h9", "") }, sure: true},
		"not when another host has it":                  {do: func(h *told) { h.read("9", "h9", "") }},
		"not after its heartbeat has lapsed":            {do: func(h *told) { h.now = h.now.Add(11 * time.Second); h.answer(h.next(Beat), Result{}) }},
		"not after the machine was suspended":           {do: func(h *told) { h.Woke(); h.now = h.now.Add(4 * time.Second); h.answer(h.next(Beat), Result{}) }},
		"still when a heartbeat is not answered in D/2": {do: func(h *told) { h.now = h.now.Add(5 * time.Second); h.answer(h.next(Beat), Result{}) }, sure: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTold(t)
			h.answer(h.next(Take), Result{Version: "5"})
			c.do(h)
			v := h.View(h.now)
			h.Expect(v.Locks[addresses[0]].Sure).To(Equal(c.sure))
		})
	}
	t.Run("not where the lease was gone after it", func(t *testing.T) {
		h := newTold(t)
		h.answer(h.next(Take), Result{Version: "5", Err: ErrGone})
		h.Expect(h.View(h.now).Locks[addresses[0]]).To(And(HaveField("Sure", false), HaveField("Holder", "h0")))
	})
	t.Run("not once it has begun to give it up", func(t *testing.T) {
		h := newTold(t)
		h.answer(h.next(Take), Result{Version: "5"})
		h.Read(h.now, nil, nil, nil)
		left := h.next(Leave)
		h.answer(left, Result{Err: errors.New("no answer")})
		h.now = h.now.Add(2 * time.Second)
		h.read("5", "h0", "")
		h.answer(h.next(Take), Result{Version: "6"})
		h.answer(h.next(Probe), Result{})
		h.Expect(h.next(Add).Address).To(Equal(addresses[0]))
	})
}

// An address is added once, and stays as it is: however often its lease is read, and whatever ports of it come and go.
func TestAddedOnce(t *testing.T) { // H11
	h := newTold(t)
	h.answer(h.next(Take), Result{Version: "5"})
	h.answer(h.next(Probe), Result{})
	h.answer(h.next(Add), Result{})
	for i := range 60 {
		h.OnInterface([]netip.Addr{addresses[0]})
		h.read("5", "h0", "")
		h.Ports(map[netip.Addr][]PortReport{addresses[0]: make([]PortReport, i%4)})
		ops, _ := h.Next(h.now)
		for k := range ops {
			if kind := ops[k].Kind; kind == Add || kind == Remove || kind == Take || kind == Probe {
				t.Fatalf("after %d s: %s", i, kind)
			}
			if ops[k].Kind == Beat || ops[k].Kind == Refresh || ops[k].Kind == Tell {
				h.answer(&ops[k], Result{Version: "5"})
			}
		}
		h.now = h.now.Add(time.Second)
	}
}

// A lock that is given up says whether the wire was asked.
func TestLeft(t *testing.T) {
	h := newTold(t)
	h.answer(h.next(Take), Result{Version: "5"})
	h.Read(h.now, nil, nil, nil)
	h.answer(h.next(Leave), Result{Version: "6"})
	h.Expect(h.View(h.now).Locks[addresses[0]]).To(And(HaveField("Holder", ""), HaveField("Left", "h0")))

	h = newTold(t)
	h.answer(h.next(Take), Result{Version: "5"})
	h.Read(h.now, []Wanted{{Address: addresses[0], Lease: "l", Ends: true}}, nil, nil)
	h.answer(h.next(Probe), Result{})
	h.answer(h.next(Empty), Result{Version: "6"})
	h.Expect(h.View(h.now).Locks[addresses[0]]).To(And(HaveField("Holder", ""), HaveField("Left", "")))
}

// One write of a lock, and one question, is under way at a time; what has failed is made again some time later.
func TestOneAtATime(t *testing.T) {
	h := newTold(t)
	take := h.next(Take)
	h.does(Not(ContainElement(HaveField("Kind", Take))))
	h.answer(take, Result{Err: ErrChanged})
	h.does(Not(ContainElement(HaveField("Kind", Take))))
	h.now = h.now.Add(time.Second)
	h.answer(h.next(Take), Result{Version: "5"})
	ask := h.next(Probe)
	h.does(Not(ContainElement(HaveField("Kind", Probe))))
	h.answer(ask, Result{MAC: "02::9"})
	tell := h.next(Tell)
	h.does(Not(ContainElement(HaveField("Kind", Add))))
	h.Expect(tell.Report).To(And(HaveField("Reason", v1alpha1.AddressInUseReason), HaveField("Message", ContainSubstring("02::9")), HaveField("Announced", false)))
	h.answer(tell, Result{Version: "6"})
	h.does(BeEmpty())
}

// shows is a host that has an address, and has told the wire and the API server.
func shows(t *testing.T) *told {
	t.Helper()
	h := newTold(t)
	h.answer(h.next(Take), Result{Version: "5"})
	h.answer(h.next(Probe), Result{})
	h.answer(h.next(Add), Result{})
	h.OnInterface(addresses[:1])
	ops, _ := h.Next(h.now)
	h.Expect(ops).To(ContainElement(And(HaveField("Kind", Announce), HaveField("Times", first))))
	for i := range ops {
		if ops[i].Kind == Tell {
			h.answer(&ops[i], Result{Version: "6"})
		}
	}
	return h
}

// work renews what a host has, and returns how often it announces its address.
func (h *told) work() (announces int) {
	ops, _ := h.Next(h.now)
	for i := range ops {
		switch ops[i].Kind {
		case Announce:
			announces++
		case Beat, Refresh:
			h.answer(&ops[i], Result{})
		case Tell: // it stays under way
		default:
			h.Expect(ops[i].Kind).To(Equal(Beat), "it is at rest")
		}
	}
	return announces
}

// pass lets time pass by seconds, and returns in which of them a host announces its address.
func (h *told) pass(seconds int) (announces []int) {
	for range seconds {
		h.now = h.now.Add(time.Second)
		h.read("6", "h0", "")
		for range h.work() {
			announces = append(announces, int(h.now.Sub(start)/time.Second))
		}
	}
	return announces
}

// The wire is told again of an address that is there: soon, and then each minute.
func TestAnnouncements(t *testing.T) { // H31
	h := shows(t)
	h.Expect(h.pass(200)).To(Equal([]int{1, 2, 5, 10, 70, 130, 190}))
	h.OnInterface(nil)
	h.Expect(h.announced).To(BeEmpty())
	h.OnInterface(addresses[:1]) // from before a restart
	h.Expect(h.next(Announce).Times).To(Equal(first))
	h.Stopping = true
	h.now = h.now.Add(time.Second)
	h.does(Not(ContainElement(HaveField("Kind", Announce))))
}

// A host that is not sure that an address is its own says nothing on the wire: another host may have it.
func TestUnsureAnnouncesNothing(t *testing.T) {
	h := shows(t)
	h.now = h.now.Add(11 * time.Second) // the API server is away
	h.does(Not(ContainElement(HaveField("Kind", Announce))))
}

// Who claims the address of a host every second is answered for as long as he does, once in D and a few times after that.
func TestClaimsWithoutEnd(t *testing.T) {
	h := shows(t)
	h.pass(20)
	var defended, announces []int
	for second := range 60 {
		if h.Claim(h.now, addresses[0], "02::9") {
			defended = append(defended, second)
		}
		h.Expect(h.Claim(h.now, addresses[0], "02::8")).To(BeFalse(), "the same for another one")
		for range h.work() {
			announces = append(announces, second%10)
		}
		h.now = h.now.Add(time.Second)
		h.read("6", "h0", "")
	}
	h.Expect(announces).To(Equal(slices.Repeat([]int{0, 1, 2, 5}, 6)))
	h.Expect(defended).To(Equal([]int{0, 10, 20, 30, 40, 50}))
}

// An address that a host has itself is none that hosts can show, and they say so: a machine that answers for it is no host that is
// about to give it up. The manager takes the next address then.
func TestOwnAddresses(t *testing.T) {
	own := func(h Host) Host { h.Own = addresses[:1]; return h }
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
			h := newTold(t)
			h.Self = c.self
			h.Read(h.now, []Wanted{{Address: addresses[0], Lease: "l"}}, nil, []ReadHost{{Host: c.other, Version: "1"}})
			h.now = h.now.Add(h.Timing.Step)
			h.answer(h.next(Take), Result{Version: "5"})
			h.answer(h.next(Probe), Result{MAC: c.answers})
			tell := h.next(Tell)
			h.Expect(tell.Report).To(And(HaveField("Reason", v1alpha1.AddressInUseReason), HaveField("Message", ContainSubstring(c.want)), HaveField("Announced", false)))
			h.does(Not(ContainElement(HaveField("Kind", Add))))
			h.now = h.now.Add(5 * time.Second)
			h.does(Not(ContainElement(HaveField("Kind", Probe))))
		})
	}
	// Of one that has it not itself, that it gives it up is waited for.
	h := newTold(t)
	h.Read(h.now, []Wanted{{Address: addresses[0], Lease: "l"}}, nil, []ReadHost{{Host: hosts[1], Version: "1"}})
	h.now = h.now.Add(h.Timing.Step)
	h.answer(h.next(Take), Result{Version: "5"})
	h.answer(h.next(Probe), Result{MAC: hosts[1].Networks[0].MAC})
	h.Expect(h.next(Tell).Report).To(HaveField("Reason", v1alpha1.ContestedReason))
}

// A claim of an address that the host has is told for a minute, and announced again once in D.
func TestClaims(t *testing.T) {
	h := newTold(t)
	h.Expect(h.Claim(h.now, addresses[0], "02::9")).To(BeFalse(), "it is not here")
	h.answer(h.next(Take), Result{Version: "5"})
	h.answer(h.next(Probe), Result{})
	h.answer(h.next(Add), Result{})
	h.OnInterface(addresses[:1])
	h.answer(h.next(Tell), Result{Version: "6"})
	h.Expect(h.Claim(h.now, addresses[0], "02::9")).To(BeTrue())
	h.Expect(h.Claim(h.now, addresses[0], "02::9")).To(BeFalse())
	tell := h.next(Tell)
	h.Expect(tell.Report).To(And(HaveField("Reason", v1alpha1.ContestedReason), HaveField("Announced", true)))
	h.answer(tell, Result{Version: "7"})
	h.now = h.now.Add(time.Minute)
	h.answer(h.next(Beat), Result{})
	take := h.next(Take) // there was none for a minute: it makes sure, and what it said stays
	h.Expect(take.Report).To(HaveField("Reason", v1alpha1.ContestedReason))
	h.answer(take, Result{Version: "8"})
	h.Expect(h.next(Tell).Report).To(HaveField("Reason", ""))
	h.Expect(h.Has()).To(Equal(map[netip.Addr]string{addresses[0]: "l"}))
}
