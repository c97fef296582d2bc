/* Hosts that show an address by themselves (T1 to T6, P6); see README.md.
 *
 * Hosts, one address, its lock, and a manager that gives the address of a lease back that is being deleted. A step is one access to the API server, the
 * wire or the kernel, and what is made of the answer. There is no clock, but what the times are for: a host has counted itself as one that may be taken
 * for dead before another one can, and the kernel of one that is frozen or killed has lost the address by then, unless that had refreshed it without an
 * answer of the API server. Of a write the model keeps whether its version is the one that is there. The wire has two sides.
 *
 * "go:" names the function that a step stands for. NO_H_x takes rule x away; the scenarios are in check.sh. */

#ifndef HOSTS
#define HOSTS 2
#endif
#ifndef LEASES
#define LEASES 1                /* leases that have the address, one after the other; whoever has it later is none of ours */
#endif
#ifndef DELETES
#define DELETES 0               /* how many of them are deleted */
#endif
#ifndef CUTS
#define CUTS 0                  /* times that a host is cut off from the API server */
#endif
#ifndef STOPS
#define STOPS 0                 /* times that one is frozen or killed */
#endif
#ifndef PARTS
#define PARTS 0                 /* times that one comes to the other side of the wire */
#endif
#ifndef LEAVES
#define LEAVES 0                /* times that one is not to have the address for a while */
#endif
#ifndef LATE
#define LATE 0                  /* writes without an answer of hosts that are well: they have landed, never will, or land at any later time */
#endif
#ifndef BEHIND
#define BEHIND 0                /* times that one takes a living host for dead, as its cache is behind */
#endif

/* The API server, and who has been given the address. */
byte lease = 1, made = 1; bool ends;    /* the lease that has the address, 0: none of ours; it is being deleted */
bool exists, left; byte holder; /* the lock: its holder by its number from 1, 0: nobody; and then nobody has asked the wire if it was left */
bool unlocks, unlockFits;       /* a delete of it is under way */
byte deletes = DELETES, cuts = CUTS, stops = STOPS, parts = PARTS, leaves = LEAVES, lates = LATE, behind = BEHIND;

#define RUNS 0
#define FROZEN 1
#define KILLED 2
#define NOTHING 0
#define TAKE 1
#define LEAVE 2
#define EMPTY 3
#define CHECK 0                 /* first the heartbeat of the holder is read, */
#define WRITE 1                 /* then the lock is written, */
#define LEASE 2                 /* then the lease is read, */
#define ANSWER 3                /* then that is heard of */

typedef Host {
	byte is; bool cut; bit side;
	bool fresh = true;          /* less than D since the last heartbeat that was answered */
	bool old;                   /* it has not changed for 1.25 D: may be taken for dead */
	bool on;                    /* the kernel has the address, and answers */
	bool kept;                  /* it was refreshed by a host that was not fresh */
	bool away;                  /* the lock was taken from it: who took it has seen that it was old */
	bool excused;               /* and it was cut off from the wire of one that asked */
	bool out;                   /* it is not to have the address */
	/* What it knows. */
	bool knows = true, newest = true, knowsOne, knowsLeft; byte knowsHolder;
	byte saw = 1; bool sawEnds;
	bool sure, silent;
	/* A write under way: made on no lock, or on the version that is there. */
	byte op, step, dead, by; bool byEnds, onNone, fits, same, good, wasOld;
	byte late, lateDead; bool lateNone, lateFits, lateOld;   /* one that nobody waits for any more */
}
Host h[HOSTS];

#define ME (i+1)
#if HOSTS>2
#define THIRD(x) x
#else
#define THIRD(x)
#endif
#define ANSWERS(j) (j!=i && h[j].on && h[j].side==h[i].side)
#if HOSTS>2
#define HEARD (ANSWERS(0) || ANSWERS(1) || ANSWERS(2))
#else
#define HEARD (ANSWERS(0) || ANSWERS(1))
#endif
#define BOTH(j,k) (h[j].on && h[k].on && h[j].side==h[k].side)
#define WRONG(j) (h[j].on && !h[j].excused)

/* H1: two hosts answer on one side of the wire only if one of them was cut off, from the API server and the wire of who took the address over.
 * H2: none answers, but for such a one, for an address that was given back.
 * H4: where STAYS, hosts are cut off from the API server and nothing else befalls them, no address leaves a host as its lock was taken. */
inline pair(j,k) { assert(!(BOTH(j,k) && !h[j].excused && !h[k].excused)) /* H1 */ }
inline check() { pair(0,1); THIRD(pair(0,2); pair(1,2);)
	assert(!(lease==0 && (WRONG(0) || WRONG(1) THIRD(|| WRONG(2))))) /* H2 */ }

#ifndef NO_H_CAS
#define CAS true
#define FITS(none,fits) ((none && !exists) || fits)
#else
#define CAS false
#define FITS(none,fits) true
#endif

inline off(j) { h[j].on = false; h[j].kept = false; h[j].away = false; h[j].excused = false; h[j].silent = false }
inline excuse(j) { h[j].excused = (h[j].excused || (h[j].on && h[j].away && h[j].side!=h[i].side)) }
inline drop(j) { h[j].late = NOTHING; h[j].lateDead = 0; h[j].lateNone = false; h[j].lateFits = false; h[j].lateOld = false }
/* What one writes, the others have not read; and what was sent on an earlier version never lands. */
inline unread(j) { h[j].newest = false; h[j].fits = false; h[j].lateFits = false; if :: h[j].late!=NOTHING && !h[j].lateNone && CAS -> drop(j) :: else fi }
inline written() { unlockFits = false; unread(0); unread(1); THIRD(unread(2)) }
/* A write of the lock lands. */
inline land(kind, from, old_) {
	exists = true; holder = (kind==TAKE -> ME : 0); left = (kind==LEAVE);
	if :: from!=0 && old_ -> h[from-1].away = h[from-1].on :: else fi;
	written() }
inline send(kind) { h[i].op = kind; h[i].step = (kind==TAKE -> CHECK : WRITE); h[i].onNone = !h[i].knowsOne; h[i].fits = (h[i].newest && h[i].knowsOne);
	h[i].same = true; h[i].good = true; h[i].wasOld = false; h[i].dead = 0; h[i].by = 0; h[i].byEnds = false }
inline idle(j) { h[j].op = NOTHING; h[j].step = CHECK; h[j].dead = 0; h[j].by = 0; h[j].byEnds = false; h[j].onNone = false; h[j].fits = false;
	h[j].same = false; h[j].good = false; h[j].wasOld = false }
/* Nobody waits for the write any more: if it was sent it may land yet. */
inline abandon(j) {
	if :: h[j].op!=NOTHING && h[j].step==WRITE && h[j].late==NOTHING -> h[j].late = h[j].op; h[j].lateDead = h[j].dead; h[j].lateNone = h[j].onNone;
		h[j].lateFits = h[j].fits; h[j].lateOld = h[j].wasOld
	:: else fi;
	idle(j) }

#ifndef NO_H_SURE
#define SURE h[i].sure
#else
#define SURE true
#endif
#ifndef NO_H_FRESH
#define FRESH h[i].fresh
#else
#define FRESH true
#endif
#ifndef NO_H_TAKE_LEFT
#define TAKEABLE (h[i].knowsLeft || !h[i].sawEnds)
#else
#define TAKEABLE !h[i].sawEnds
#endif
/* The holder does not answer on the wire. */
#define HOLDER h[h[i].knowsHolder-1]
#ifndef NO_H_HEARD
#define UNHEARD (h[i].sawEnds || !(HOLDER.on && HOLDER.side==h[i].side))
#else
#define UNHEARD true
#endif
#ifndef NO_H_REREAD
#define DEAD(j) (j==0 || h[j-1].old)
#else
#define DEAD(j) true
#endif
#ifndef NO_H_LIFETIME
#define LIVES (h[i].on && !h[i].kept)
#else
#define LIVES (h[i].on && !h[i].kept && h[i].is==RUNS)
#endif
#ifndef NO_H_PROBE
#define SILENT h[i].silent
#else
#define SILENT true
#endif
#ifndef NO_H_ANEW
#define ANEW true
#else
#define ANEW false
#endif
#ifndef NO_H_AGE
#define AGE true
#else
#define AGE false
#endif
#ifndef NO_H_ASK
#define ASKED h[i].silent
#else
#define ASKED true
#endif
#ifndef NO_H_LOCK_FIRST
#define MINE (h[i].knowsHolder==ME)
#else
#define MINE (h[i].knowsHolder==ME || h[i].knowsHolder==0)
#endif
#ifndef NO_H_OFF_FIRST
#define OFF !h[i].on
#else
#define OFF true
#endif
#ifndef NO_H_LEFT
#define EMPTIED (holder==0 && !left)
#else
#define EMPTIED (holder==0)
#endif
#ifndef NO_H_UNLOCK
#define UNLOCK unlockFits
#else
#define UNLOCK true
#endif
#define THERE(l) (lease==l && !ends)

#define CALLS (h[i].is==RUNS && !h[i].cut)
#define ACTS (h[i].is==RUNS && FRESH)
#define WANTED (h[i].saw!=0 && !h[i].sawEnds && !h[i].out)
#define BELIEVES (h[i].knowsHolder!=0 && h[i].knowsHolder!=ME && h[h[i].knowsHolder-1].old)

proctype host(byte i) {
end:	do
	/* T1. go: hostlb.HostState.CompleteOp, hostlb.HostState.heartbeatInterval */
	:: d_step { CALLS && !h[i].fresh -> printf("host %d: its heartbeat is answered\n",ME); h[i].fresh = true; h[i].old = false; h[i].kept = false }
	/* D without an answer. go: hostlb.HostState.HasCurrentHeartbeat, hostlb.HostState.recordLapse */
	:: d_step { h[i].fresh && !CALLS -> printf("host %d: has not been answered for D\n",ME); h[i].fresh = false;
#ifndef NO_H_LAPSE
		h[i].sure = false; h[i].same = false;
#endif
		h[i].silent = (h[i].silent && !AGE) }
	:: d_step { !h[i].fresh && !h[i].old && !LIVES -> printf("host %d: may be taken for dead\n",ME); h[i].old = true }
	/* What the caches show. A lock that is lost takes the address off at once. go: hostlb.HostState.ObserveCache, hostlb.planner.planWithoutLock */
	:: d_step { CALLS && (!h[i].knows || !h[i].newest) -> printf("host %d: is shown the lock, of %d\n",ME,holder);
		h[i].knows = true; h[i].newest = true; h[i].knowsOne = exists; h[i].knowsLeft = left; h[i].knowsHolder = holder;
		h[i].sure = (h[i].sure && holder==ME); h[i].silent = (h[i].silent && (holder==ME || !ANEW));
#ifdef STAYS
		assert(!(h[i].on && holder!=ME)); /* H4 */
#endif
		if
#ifndef NO_H_OFF
		:: h[i].on && holder!=ME -> printf("host %d: takes the address off\n",ME); off(i)
#else
		:: h[i].on && holder!=ME -> h[i].excused = false
#endif
		:: else
		fi;
		check() }
	:: d_step { CALLS && (h[i].saw!=lease || h[i].sawEnds!=ends) -> printf("host %d: is shown lease %d\n",ME,lease); h[i].saw = lease; h[i].sawEnds = ends }
	/* T2. It takes a lock, or takes it once more. go: hostlb.ComputePlan, hostlb.planner.planWithLock, hostlb.planner.probeBeforeTakeover, hostlb.HostState.beginLockWrite */
	:: d_step { CALLS && FRESH && h[i].op==NOTHING && h[i].newest && h[i].saw!=0 && !h[i].out && !h[i].on &&
		(h[i].knowsHolder==ME -> !h[i].sawEnds && !SURE : (h[i].knowsHolder==0 -> TAKEABLE : (BELIEVES || behind>0) && UNHEARD)) ->
		printf("host %d: is to take the lock of %d\n",ME,h[i].knowsHolder);
		send(TAKE); h[i].by = h[i].saw; h[i].byEnds = h[i].sawEnds; h[i].dead = (h[i].knowsHolder!=ME -> h[i].knowsHolder : 0);
		behind = (h[i].dead!=0 && !BELIEVES -> behind-1 : behind) }
	/* go: hostlb.planner.isHostAlive, hostlb.HostState.completeLockWrite */
	:: d_step { CALLS && h[i].op==TAKE && h[i].step==CHECK && DEAD(h[i].dead) -> printf("host %d: sends that it has the lock\n",ME);
		h[i].wasOld = (h[i].dead!=0 -> h[h[i].dead-1].old && h[h[i].dead-1].kept : false); h[i].step = WRITE;
#ifdef NO_H_LEASE_AFTER
		h[i].good = (h[i].byEnds || THERE(h[i].by))
#endif
	}
	:: d_step { CALLS && h[i].op==TAKE && h[i].step==CHECK && !DEAD(h[i].dead) -> printf("host %d: finds the holder alive\n",ME); idle(i) }
	:: d_step { h[i].op!=NOTHING && h[i].step==WRITE && FITS(h[i].onNone,h[i].fits) -> printf("host %d: its write %d lands\n",ME,h[i].op);
		land(h[i].op, h[i].dead, h[i].wasOld); h[i].fits = true; h[i].step = (h[i].op==TAKE && !h[i].byEnds -> LEASE : ANSWER) }
	:: d_step { CALLS && h[i].op!=NOTHING && h[i].step==WRITE && !FITS(h[i].onNone,h[i].fits) -> printf("host %d: its write %d is refused\n",ME,h[i].op); idle(i) }
	:: d_step { CALLS && h[i].op!=NOTHING && h[i].step==LEASE -> printf("host %d: reads the lease\n",ME); h[i].step = ANSWER;
#if !defined(NO_H_LEASE) && !defined(NO_H_LEASE_AFTER)
		h[i].good = THERE(h[i].by)
#endif
	}
	:: d_step { CALLS && h[i].op!=NOTHING && h[i].step==ANSWER -> printf("host %d: hears of its write %d\n",ME,h[i].op);
		h[i].newest = h[i].fits; h[i].knowsOne = true; h[i].knowsHolder = (h[i].op==TAKE -> ME : 0); h[i].knowsLeft = (h[i].op==LEAVE);
		h[i].sure = (h[i].op==TAKE && h[i].good && h[i].same); h[i].silent = (h[i].silent && !ANEW); idle(i) }
	/* No answer. */
	:: d_step { h[i].is==RUNS && h[i].op!=NOTHING && (h[i].cut || lates>0) -> printf("host %d: waits for its write %d no more\n",ME,h[i].op);
		lates = (h[i].cut -> lates : lates-1); abandon(i) }
	:: d_step { h[i].late!=NOTHING && FITS(h[i].lateNone,h[i].lateFits) -> printf("host %d: its write %d lands late\n",ME,h[i].late);
		land(h[i].late, h[i].lateDead, h[i].lateOld); drop(i) }
	:: d_step { h[i].late!=NOTHING && h[i].step==WRITE -> printf("host %d: its write %d never lands\n",ME,h[i].late); drop(i) }
	/* T3, T5. It asks the wire, and nobody answers. go: hostlb.planner.planProbe, hostlb.HostState.completeProbe */
	:: d_step { ACTS && h[i].knows && MINE && !h[i].on && !h[i].silent && h[i].saw!=0 && !h[i].out && (h[i].sawEnds || SURE || !(h[i].knowsHolder==ME)) && !HEARD ->
		printf("host %d: asks the wire, which is silent\n",ME); h[i].silent = true; excuse(0); excuse(1); THIRD(excuse(2)) }
	/* go: hostlb.HostState.PlanOps */
	:: d_step { ACTS && h[i].knows && MINE && WANTED && !h[i].on && (SURE || !(h[i].knowsHolder==ME)) && SILENT ->
		printf("host %d: adds the address\n",ME); h[i].on = true; h[i].silent = false; h[i].kept = false; check() }
	/* T4. It refreshes it, though it may be taken for dead; or hears another one. go: hostlb.planner.isTakenOver */
	:: d_step { h[i].is==RUNS && h[i].knows && h[i].on && !h[i].fresh && !h[i].kept && h[i].knowsHolder==ME && WANTED -> printf("host %d: keeps the address\n",ME); h[i].kept = true }
#ifndef NO_H_HEAR
	:: d_step { h[i].is==RUNS && h[i].knows && h[i].on && !h[i].fresh && HEARD -> printf("host %d: hears another one, and takes the address off\n",ME); off(i) }
#endif
	/* T5. go: hostlb.planner.mayKeepAddress, hostlb.planner.planRelease */
	:: d_step { h[i].is==RUNS && h[i].knows && h[i].on && !WANTED -> printf("host %d: gives the address up\n",ME); off(i) }
	:: d_step { CALLS && FRESH && h[i].op==NOTHING && h[i].newest && h[i].knowsHolder==ME && OFF && !WANTED && (h[i].out || !h[i].sawEnds) ->
		printf("host %d: sends that it has left the lock\n",ME); send(LEAVE); h[i].sure = false }
	:: d_step { CALLS && FRESH && h[i].op==NOTHING && h[i].newest && h[i].knowsHolder==ME && OFF && h[i].sawEnds && !h[i].out && ASKED ->
		printf("host %d: sends that the lock is empty\n",ME); send(EMPTY); h[i].sure = false }
	:: d_step { leaves>0 && h[i].is==RUNS && h[i].knowsHolder==ME -> printf("host %d: is not to have the address\n",ME); leaves--; h[i].out = true }
	:: d_step { h[i].out -> printf("host %d: may have the address\n",ME); h[i].out = false }
	/* What befalls it. */
	:: d_step { cuts>0 && !h[i].cut -> printf("host %d: is cut off from the API server\n",ME); cuts--; h[i].cut = true }
	:: d_step { stops>0 && h[i].is==RUNS -> printf("host %d: is frozen\n",ME); stops--; h[i].is = FROZEN }
	:: d_step { h[i].is==FROZEN -> printf("host %d: goes on\n",ME); h[i].is = RUNS }
	:: d_step { stops>0 && h[i].is==RUNS -> printf("host %d: is killed\n",ME); stops--; h[i].is = KILLED; abandon(i);
		h[i].knows = false; h[i].newest = false; h[i].knowsOne = false; h[i].knowsLeft = false; h[i].knowsHolder = 0; h[i].saw = 0; h[i].sawEnds = false;
		h[i].sure = false; h[i].silent = false; h[i].out = false }
#ifndef FOREVER
	:: d_step { h[i].cut -> printf("host %d: reaches the API server\n",ME); h[i].cut = false }
	/* T6. go: hostlb.NewHostState */
	:: d_step { h[i].is==KILLED -> printf("host %d: begins\n",ME); h[i].is = RUNS; h[i].fresh = false }
#endif
#ifndef NO_H_LIFETIME
	:: d_step { h[i].on && (h[i].is!=RUNS || !h[i].knows) -> printf("host %d: its kernel takes the address off\n",ME); off(i) }
#endif
	:: d_step { parts>0 && i>0 && h[i].side==0 -> printf("host %d: is on the other side of the wire\n",ME); parts--; h[i].side = 1; check() }
	:: d_step { h[i].side==1 -> printf("host %d: is on the wire again\n",ME); h[i].side = 0; check() }
	od
}

/* P6. It sees that the lease is being deleted, and then reads the lock, as the API server has it. go: record.ParseLock */
active proctype manager() {
	bool sees, reads;
end:	do
	:: d_step { lease!=0 && ends && !sees -> printf("manager: sees that lease %d ends\n",lease); sees = true }
#ifndef NO_H_THEN_READ
	:: d_step { sees && !reads && EMPTIED -> printf("manager: reads that nobody has the lock\n"); reads = true }
#else
	:: d_step { lease!=0 && !reads && EMPTIED -> printf("manager: reads that nobody has the lock\n"); reads = true }
#endif
	:: d_step { sees && reads -> printf("manager: gives the address back\n"); lease = 0; ends = false; sees = false; reads = false; check() }
	od
}

active proctype user() {
end:	do
	:: d_step { lease!=0 && !ends && deletes>0 -> printf("user: deletes lease %d\n",lease); deletes--; ends = true }
	:: d_step { lease==0 && made<LEASES -> made++; lease = made; printf("user: makes lease %d\n",lease) }
	/* The lock of an address that nobody has a lease of, and that is empty, is deleted as it was read. */
	:: d_step { exists && lease==0 && EMPTIED && !unlocks -> printf("user: sends the delete of the lock\n"); unlocks = true; unlockFits = true }
	:: d_step { unlocks -> printf("user: the delete of the lock arrives\n"); unlocks = false;
		if :: exists && UNLOCK -> exists = false; holder = 0; left = false; written() :: else fi;
		unlockFits = false }
	od
}

/* H3: when nothing moves any more, no two hosts answer on one side, the address is on one host if a lease has it, and no lease waits for its end. */
active proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	d_step {
		assert(!BOTH(0,1) THIRD(&& !BOTH(0,2) && !BOTH(1,2))); /* H3 */
#ifndef FOREVER
		assert(!ends && (lease==0 || h[0].on || h[1].on THIRD(|| h[2].on))) /* H3 */
#endif
	}
}

init { run host(0); run host(1); THIRD(run host(2)) }
