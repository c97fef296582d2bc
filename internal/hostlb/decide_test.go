package hostlb

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// TestComputePlan checks what a host does, by what it knows of one address.
func TestComputePlan(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.10")
	these := []netip.Addr{a}
	now := start.Add(time.Hour)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	hosts := hostsOf(2)
	order := RankHosts(a, hosts, nil) // in the order in which they take the address
	me, other := order[0], order[1]
	base := func(change ...func(*View)) *View {
		v := &View{
			Wanted: []WantedAddress{{Address: a}}, HeartbeatCurrent: true, Locks: map[netip.Addr]Lock{}, Hosts: hosts, HeartbeatTimes: map[string]time.Time{me: now, other: now},
			FreeSince: map[netip.Addr]time.Time{}, Managed: map[netip.Addr]time.Time{}, Probes: map[netip.Addr]ProbeStatus{}, ClaimedAt: map[netip.Addr]time.Time{}, Failures: map[netip.Addr]Failure{},
		}
		for _, f := range change {
			f(v)
		}
		return v
	}
	held := func(by string) func(*View) {
		return func(v *View) { v.Locks[a] = Lock{Version: "1", Holder: by, Confirmed: by == me || by == other} }
	}
	left := func(by string) func(*View) { return func(v *View) { v.Locks[a] = Lock{Version: "1", ReleasedBy: by} } }
	unsure := func(v *View) { v.Locks[a] = Lock{Version: "1", Holder: me} }
	claimed := func(d time.Duration) func(*View) { return func(v *View) { v.ClaimedAt[a] = ago(d) } }
	failed := func(since, last time.Duration) func(*View) {
		return func(v *View) { v.Failures[a] = Failure{ago(since), ago(last), "no"} }
	}
	on1 := func(v *View) { v.Wanted[0].Nodes = map[string]bool{"n7": true} }
	onOther := func(v *View) {
		v.Wanted[0].Nodes = map[string]bool{hosts[slices.IndexFunc(hosts, func(h Host) bool { return h.Name == other })].Node: true}
	}
	free := func(d time.Duration) func(*View) { return func(v *View) { v.FreeSince[a] = ago(d) } }
	on := func(d time.Duration) func(*View) {
		return func(v *View) { v.Managed[a] = ago(d).Add(DefaultTiming().refreshInterval()) }
	}
	probed := func(w ProbeResult, d time.Duration) func(*View) {
		return func(v *View) { v.Probes[a] = ProbeStatus{w, ago(d), "m"} }
	}
	before := func(w ProbeResult, d time.Duration) func(*View) {
		return func(v *View) { v.TakeoverProbes = map[netip.Addr]ProbeStatus{a: {w, ago(d), "m"}} }
	}
	silent := func(name string, d time.Duration) func(*View) {
		return func(v *View) { v.HeartbeatTimes[name] = ago(d) }
	}
	old := func(v *View) { v.HeartbeatCurrent = false }
	ends := func(v *View) { v.Wanted[0].LeaseDeleting = true }
	stops := func(v *View) { v.Stopping = true }
	unwanted := func(v *View) { v.Wanted = nil }
	for name, c := range map[string]struct {
		me   string
		v    *View
		want Plan
	}{
		"no host has it":                          {me, base(free(0)), Plan{AcquireLocks: these}},
		"no host has it, and it is second":        {other, base(free(0)), Plan{RequeueAt: now.Add(200 * time.Millisecond)}},
		"no host has taken it":                    {other, base(free(time.Second)), Plan{AcquireLocks: these}},
		"no host has it, and no API server":       {me, base(free(time.Hour), old), Plan{}},
		"no host has it, and nothing was read":    {me, base(func(v *View) { v.Locks = nil }), Plan{}},
		"the other one has left it":               {other, base(left(me), free(0)), Plan{AcquireLocks: these}},
		"it has left it itself":                   {me, base(left(me), free(0)), Plan{RequeueAt: now.Add(200 * time.Millisecond)}},
		"it ends, and no host has it":             {me, base(free(time.Hour), ends), Plan{}},
		"it ends, and no host has asked":          {me, base(left("h9"), free(time.Hour), ends), Plan{AcquireLocks: these}},
		"it could not add it, not long ago":       {me, base(free(time.Hour), failed(time.Hour, 10*time.Second)), Plan{RequeueAt: now.Add(50 * time.Second)}},
		"it could not add it, long ago":           {me, base(free(time.Hour), failed(time.Hour, time.Minute)), Plan{AcquireLocks: these}},
		"another one has it":                      {me, base(held(other)), Plan{RequeueAt: now.Add(11500 * time.Millisecond)}},
		"the first one has it":                    {other, base(held(me)), Plan{RequeueAt: now.Add(11500 * time.Millisecond)}},
		"another one was silent for a while":      {me, base(held(other), silent(other, 12*time.Second)), Plan{Probe: these, RequeueAt: now.Add(500 * time.Millisecond)}},
		"another one is dead":                     {me, base(held(other), silent(other, time.Minute), free(0)), Plan{Probe: these}},
		"another one is dead, and silent":         {me, base(held(other), silent(other, time.Minute), free(0), before(NoReply, 0)), Plan{AcquireLocks: these}},
		"another one is dead, and was silent":     {me, base(held(other), silent(other, time.Minute), free(0), before(NoReply, time.Second)), Plan{Probe: these}},
		"another one is dead, and not asked":      {me, base(held(other), silent(other, time.Minute), free(0), before(NotProbed, 0)), Plan{AcquireLocks: these}},
		"another one is dead, and answers":        {me, base(held(other), silent(other, time.Minute), free(0), before(PeerReply, 0)), Plan{RequeueAt: now.Add(time.Second)}},
		"another one is dead, and answered":       {me, base(held(other), silent(other, time.Minute), free(0), before(PeerReply, time.Second)), Plan{Probe: these}},
		"a third one is dead, and answers":        {other, base(held("h9"), silent("h9", time.Minute), free(time.Minute), before(PeerReply, time.Second)), Plan{RequeueAt: now.Add(time.Second)}},
		"a dead one answers, and it ends":         {me, base(held(other), silent(other, time.Minute), free(0), before(PeerReply, 0), ends), Plan{AcquireLocks: these}},
		"another one was always silent":           {me, base(held("gone"), free(0)), Plan{Probe: these}},
		"it has the lock, by what was read":       {me, base(unsure), Plan{AcquireLocks: these}},
		"it has the lock":                         {me, base(held(me)), Plan{Probe: these}},
		"the wire is silent":                      {me, base(held(me), probed(NoReply, 0)), Plan{Add: these}},
		"the wire was silent":                     {me, base(held(me), probed(NoReply, time.Minute)), Plan{Probe: these}},
		"another host answers":                    {me, base(held(me), probed(PeerReply, 0)), Plan{Contested: these, RequeueAt: now.Add(time.Second)}},
		"another host answered":                   {me, base(held(me), probed(PeerReply, time.Second)), Plan{Contested: these, Probe: these}},
		"a foreign machine answers":               {me, base(held(me), probed(ForeignReply, 0)), Plan{InUse: these, RequeueAt: now.Add(10 * time.Second)}},
		"a foreign machine answered":              {me, base(held(me), probed(ForeignReply, 10*time.Second)), Plan{InUse: these, Probe: these}},
		"it could not ask":                        {me, base(held(me), failed(time.Second, 0)), Plan{RequeueAt: now.Add(time.Second)}},
		"it could not ask, and asks again":        {me, base(held(me), failed(2*time.Second, time.Second)), Plan{Probe: these}},
		"it could not ask for long":               {me, base(held(me), failed(5*time.Second, 0)), Plan{ReleaseUnconfirmed: these}},
		"it is on":                                {me, base(held(me), on(0)), Plan{RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
		"it is on, and something had failed":      {me, base(held(me), on(0), failed(time.Hour, time.Minute)), Plan{RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
		"it is on, by what was read":              {me, base(unsure, on(0)), Plan{AcquireLocks: these, Probe: these, RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
		"it is on, by what was read, and asked":   {me, base(unsure, on(0), probed(NoReply, time.Second)), Plan{AcquireLocks: these, RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
		"it is on, by what was read, claimed":     {me, base(unsure, on(0), claimed(0)), Plan{Remove: these}},
		"it is to be refreshed":                   {me, base(held(me), on(4*time.Second)), Plan{Refresh: these}},
		"no API server, and it asked":             {me, base(held(me), on(4*time.Second), probed(NoReply, time.Second), old), Plan{Refresh: these, RequeueAt: now.Add(9 * time.Second)}},
		"no API server, another answers":          {me, base(held(me), on(0), probed(ForeignReply, 0), old), Plan{Remove: these}},
		"no API server, another answered once":    {me, base(held(me), on(0), probed(ForeignReply, time.Minute), old), Plan{Probe: these, RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
		"no API server":                           {me, base(held(me), on(4*time.Second), old), Plan{Refresh: these, Probe: these}},
		"no API server, and it is blind":          {me, base(held(me), on(0), old, failed(10*time.Second, 0)), Plan{Remove: these}},
		"no API server, and it is off":            {me, base(held(me), probed(NoReply, 0), old), Plan{}},
		"no API server, and claimed":              {me, base(held(me), on(0), old, claimed(0)), Plan{Remove: these}},
		"no API server, and claimed once":         {me, base(held(me), on(4*time.Second), old, claimed(time.Minute)), Plan{Refresh: these, Probe: these}},
		"claimed":                                 {me, base(held(me), on(4*time.Second), claimed(0)), Plan{Refresh: these}},
		"the lock is lost":                        {me, base(held(other), on(0)), Plan{Remove: these}},
		"from before a restart":                   {me, base(unwanted, on(0)), Plan{Remove: these}},
		"it has no ports any more":                {me, base(held(me), on(0), unwanted), Plan{Remove: these}},
		"it has no ports any more, and is off":    {me, base(held(me), unwanted), Plan{ReleaseUnconfirmed: these}},
		"it ends":                                 {me, base(held(me), on(0), ends), Plan{Remove: these}},
		"it ends, and is off":                     {me, base(held(me), probed(NoReply, 0), ends), Plan{ReleaseConfirmed: these}},
		"it ends, and was silent once":            {me, base(held(me), probed(NoReply, time.Hour), ends), Plan{Probe: these}},
		"it ends, and it cannot ask":              {me, base(held(me), ends, failed(5*time.Second, 0)), Plan{ReleaseUnconfirmed: these}},
		"it ends, and no API server":              {me, base(held(me), probed(NoReply, 0), ends, old), Plan{}},
		"never read, and it is on":                {me, base(on(0), old, func(v *View) { v.Locks = nil }), Plan{}},
		"it ends, and was never on":               {me, base(held(me), ends), Plan{Probe: these}},
		"it ends, and a foreign machine answers":  {me, base(held(me), probed(ForeignReply, 0), ends), Plan{ReleaseConfirmed: these}},
		"it ends, and a foreign machine answered": {me, base(held(me), probed(ForeignReply, 10*time.Second), ends), Plan{InUse: these, Probe: these}},
		"it ends, and another answers":            {me, base(held(me), probed(PeerReply, 0), ends), Plan{Contested: these, RequeueAt: now.Add(time.Second)}},
		"it ends, and a dead one has it":          {other, base(held("h9"), silent("h9", time.Minute), free(time.Minute), ends), Plan{AcquireLocks: these}},
		"it stops":                                {me, base(held(me), on(0), stops), Plan{Remove: these}},
		"it stops, and is off":                    {me, base(held(me), stops), Plan{ReleaseUnconfirmed: these}},
		"it stops, and no API server":             {me, base(held(me), stops, old), Plan{}},
		"it stops, another's":                     {me, base(held(other), silent(other, time.Minute), free(time.Minute), stops), Plan{}},
		"another network":                         {me, base(held(me), on(0), func(v *View) { v.Hosts = nil }), Plan{Remove: these}},
		"another network, and no API server":      {me, base(held(me), on(0), old, func(v *View) { v.Hosts = nil }), Plan{Remove: these}},
		"its endpoints are on the other's Node":   {me, base(held(me), on(0), onOther), Plan{Remove: these}},
		"its endpoints are on no host's Node":     {me, base(held(me), on(0), on1), Plan{RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
		"the other's Node has no living host":     {me, base(held(me), on(0), onOther, silent(other, time.Minute)), Plan{RequeueAt: now.Add(DefaultTiming().refreshInterval())}},
	} {
		if diff := cmp.Diff(c.want, ComputePlan(now, c.me, c.v, DefaultTiming()), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}
