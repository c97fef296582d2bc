package elastic

import "time"

var stories = map[string]story{
	"GrowByOne": {
		reason:   "a Service finds nothing, and has an address as soon as one is granted (B36, B44)",
		settings: PlanSettings{Increment: 1}, initial: 1,
		phases: []phase{then(time.Minute, createsService("a")), then(time.Minute, createsService("b"))},
		want: `
00:00:00 a has [10.0.0.1]
00:01:00 lb-1: 1 IPv4 for the 1 that are lacking
00:01:00 lb-1 gets 10.0.0.2-10.0.0.2
00:01:00 default-pool shows [10.0.0.1-10.0.0.1 10.0.0.2-10.0.0.2]
00:01:00 b has [10.0.0.2]
`,
		addresses: 2, served: 2,
	},
	"GrowByFive": {
		reason:   "five at once are one block (B38)",
		settings: PlanSettings{Increment: 1}, initial: 2,
		phases: []phase{then(time.Minute, createServices("a b c d e f g")...)},
		want: `
00:00:00 a has [10.0.0.1]
00:00:00 b has [10.0.0.2]
00:00:00 lb-1: 5 IPv4 for the 5 that are lacking
00:00:00 lb-1 gets 10.0.0.3-10.0.0.7
00:00:00 default-pool shows [10.0.0.1-10.0.0.2 10.0.0.3-10.0.0.7]
00:00:00 c has [10.0.0.3]
00:00:00 d has [10.0.0.4]
00:00:00 e has [10.0.0.5]
00:00:00 f has [10.0.0.6]
00:00:00 g has [10.0.0.7]
`,
		addresses: 7, served: 7,
	},
	"InPieces": {
		reason:   "no five in a row: two blocks, and all that arrives is used",
		settings: PlanSettings{Increment: 1}, free: []string{"10.0.0.1-10.0.0.3", "10.0.0.5-10.0.0.9"},
		phases: []phase{then(time.Minute, createServices("a b c d e f")...)},
		want: `
00:00:00 lb-1: 6 IPv4 for the 6 that are lacking
00:00:00 lb-1 gets 10.0.0.5-10.0.0.9
00:00:00 lb-1x gets 10.0.0.1-10.0.0.1
00:00:00 default-pool shows [10.0.0.5-10.0.0.9 10.0.0.1-10.0.0.1]
00:00:00 a has [10.0.0.5]
00:00:00 b has [10.0.0.6]
00:00:00 c has [10.0.0.7]
00:00:00 d has [10.0.0.8]
00:00:00 e has [10.0.0.9]
00:00:00 f has [10.0.0.1]
`,
		addresses: 6, served: 6,
	},
	"SharedKeys": {
		reason:   "who can share needs one, who has the same port another one (B38)",
		settings: PlanSettings{Increment: 1},
		phases:   []phase{then(time.Minute, createsService("a", shares("k", 80)), createsService("b", shares("k", 443)), createsService("c", shares("k", 80)), createsService("d", shares("k", 22)))},
		want: `
00:00:00 lb-1: 2 IPv4 for the 2 that are lacking
00:00:00 lb-1 gets 10.0.0.1-10.0.0.2
00:00:00 default-pool shows [10.0.0.1-10.0.0.2]
00:00:00 a has [10.0.0.1]
00:00:00 b has [10.0.0.1]
00:00:00 c has [10.0.0.2]
00:00:00 d has [10.0.0.1]
`,
		addresses: 2, served: 4,
	},
	"Quota": {
		reason:   "a part is granted, the rest waits without requests, and is served when a Service goes (B39, F9)",
		settings: PlanSettings{Increment: 1, Quota: 4}, initial: 2,
		phases: []phase{then(time.Hour, createServices("a b c d e f")...), then(time.Hour, removesService("a"), removesService("c"))},
		want: `
00:00:00 a has [10.0.0.1]
00:00:00 b has [10.0.0.2]
00:00:00 lb-1: 2 IPv4 for the 4 that are lacking
00:00:00 lb-1 gets 10.0.0.3-10.0.0.4
00:00:00 default-pool shows [10.0.0.1-10.0.0.2 10.0.0.3-10.0.0.4]
00:00:00 c has [10.0.0.3]
00:00:00 d has [10.0.0.4]
01:00:00 e has [10.0.0.1]
01:00:00 f has [10.0.0.3]
`,
		addresses: 4, served: 4,
	},
	"PoolExhausted": {
		reason:   "what is on its way is asked for once (B37, B51)",
		settings: PlanSettings{Increment: 1}, free: []string{"10.0.0.1-10.0.0.2"},
		phases: []phase{then(time.Hour, createServices("a b c d")...), then(time.Hour, removesService("a"))},
		want: `
00:00:00 lb-1: 4 IPv4 for the 4 that are lacking
00:00:00 lb-1 gets 10.0.0.1-10.0.0.2
00:00:00 default-pool shows [10.0.0.1-10.0.0.2]
00:00:00 a has [10.0.0.1]
00:00:00 b has [10.0.0.2]
01:00:00 c has [10.0.0.1]
`,
		addresses: 4, served: 2,
	},
	"Shrink": {
		reason:   "what no Service used for ten minutes without a break is released (B45, B46, B47, F1)",
		settings: PlanSettings{Increment: 1}, initial: 1,
		phases: []phase{then(0, createsService("a")), then(3*time.Hour, createsService("b")), then(9*time.Minute, removesService("b")), then(time.Second, createsService("c")), then(time.Hour, removesService("c"))},
		want: `
00:00:00 a has [10.0.0.1]
00:00:00 lb-1: 1 IPv4 for the 1 that are lacking
00:00:00 lb-1 gets 10.0.0.2-10.0.0.2
00:00:00 default-pool shows [10.0.0.1-10.0.0.1 10.0.0.2-10.0.0.2]
00:00:00 b has [10.0.0.2]
03:00:00 lb-1 is idle
03:09:00 c has [10.0.0.2]
03:09:00 lb-1 is in use
03:09:01 lb-1 is idle
03:19:01 lb-1 is taken away
03:19:01 default-pool shows [10.0.0.1-10.0.0.1]
03:19:01 lb-1 is given up
`,
		addresses: 1, served: 1,
	},
	"Last": {
		reason:   "the last block goes as any other, and the next Service brings one back (F3)",
		settings: PlanSettings{Increment: 2},
		phases:   []phase{then(time.Minute, createsService("a")), then(time.Hour, removesService("a")), then(time.Minute, createsService("b"))},
		want: `
00:00:00 lb-1: 2 IPv4 for the 1 that are lacking
00:00:00 lb-1 gets 10.0.0.1-10.0.0.2
00:00:00 default-pool shows [10.0.0.1-10.0.0.2]
00:00:00 a has [10.0.0.1]
00:01:00 lb-1 is idle
00:11:00 lb-1 is taken away
00:11:00 default-pool shows []
00:11:00 lb-1 is given up
01:01:00 lb-2: 2 IPv4 for the 1 that are lacking
01:01:00 lb-2 gets 10.0.0.1-10.0.0.2
01:01:00 default-pool shows [10.0.0.1-10.0.0.2]
01:01:00 b has [10.0.0.1]
`,
		addresses: 2, served: 1,
	},
	"DesignEvolution": {
		reason:   "increment 1, two allocated, two used: Butler's controller grew and shrank for ever (B52)",
		settings: PlanSettings{Increment: 1}, initial: 2,
		phases: []phase{then(24*time.Hour, createServices("platform tenant")...)},
		want: `
00:00:00 platform has [10.0.0.1]
00:00:00 tenant has [10.0.0.2]
`,
		addresses: 2, served: 2,
	},
	"Unsatisfiable": {
		reason:   "who cannot be served is not grown for, and never again (F4)",
		settings: PlanSettings{Increment: 1}, initial: 1,
		phases: []phase{then(0, createsService("first")), then(24*time.Hour, createsService("class", class("other")), createsService("error", withError("no address")), createsService("pool", named("nope")), createsService("ip", withRequestedIPs("192.0.2.1")),
			createsService("taken", withRequestedIPs("10.0.0.1")), createsService("family", withRequestedIPs("2001:db8::1")), createsService("clusterip", of()), createsService("stack", func(s *Service) { s.FamilyPolicy = RequireDualStack }))},
		want:      "\n00:00:00 first has [10.0.0.1]\n",
		addresses: 1, served: 1,
	},
	"HalfServed": {
		reason:   "the quota leaves one address of two: it is not released only to be requested again (F4)",
		settings: PlanSettings{Increment: 1, Quota: 3}, initial: 2, free: []string{"10.0.0.1-10.0.0.9", "2001:db8::1-2001:db8::9"},
		phases: []phase{then(24*time.Hour, createsService("a"), createsService("b"), createsService("both", dual(RequireDualStack)))},
		want: `
00:00:00 a has [10.0.0.1]
00:00:00 b has [10.0.0.2]
00:00:00 lb-1: 1 IPv4 for the 1 that are lacking
00:00:00 lb-1 gets 10.0.0.3-10.0.0.3
00:00:00 default-pool shows [10.0.0.1-10.0.0.2 10.0.0.3-10.0.0.3]
`,
		addresses: 3, served: 2,
	},
	"Buggy": {
		reason:   "a block that MetalLB passes over is not released only to be requested again (F4)",
		settings: PlanSettings{Increment: 1, Quota: 2}, initial: 1, free: []string{"10.0.0.254-10.0.1.0"}, template: ours().careful(),
		phases: []phase{then(24*time.Hour, createsService("a"), createsService("b"))},
		want: `
00:00:00 a has [10.0.0.254]
00:00:00 lb-1: 1 IPv4 for the 1 that are lacking
00:00:00 lb-1 gets 10.0.0.255-10.0.0.255
00:00:00 default-pool shows [10.0.0.254-10.0.0.254 10.0.0.255-10.0.0.255]
00:00:00 lb-1 is idle
`,
		addresses: 2, served: 1,
	},
	"OneFamilyAfterTheOther": {
		reason:   "who prefers two addresses and has one takes the first that comes: all of that is one growth",
		settings: PlanSettings{Increment: 1}, initial: 2, free: []string{"10.0.0.1-10.0.0.9", "2001:db8::1-2001:db8::9"},
		phases: []phase{then(time.Minute, createsService("a", dual(PreferDualStack)), createsService("b", dual(PreferDualStack))), then(time.Hour, createsService("six", of(IPv6)))},
		want: `
00:00:00 a has [10.0.0.1]
00:00:00 b has [10.0.0.2]
00:01:00 lb-1: 3 IPv6 for the 3 that are lacking
00:01:00 lb-1 gets 2001:db8::1-2001:db8::3
00:01:00 default-pool shows [10.0.0.1-10.0.0.2 2001:db8::1-2001:db8::3]
00:01:00 a has [10.0.0.1 2001:db8::1]
00:01:00 b has [10.0.0.2 2001:db8::2]
00:01:00 six has [2001:db8::3]
`,
		addresses: 5, served: 3,
	},
}
