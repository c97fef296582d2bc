/* The protocol by which a pool grants and releases addresses; see README.md.
 *
 * Two managers serve one pool. Every step is one access to the API server and what the manager makes of the
 * answer; between two steps anything may happen, which is what a pause is. A request that fails may have landed,
 * may never land, or may land later: then it is "in the air".
 *
 * "go:" names the function that a step stands for. NO_x takes rule x away; the scenarios are in check.sh. */

#ifndef UIDS
#define UIDS 3                  /* claims that users make: 1 and 3 have name 0, 2 and 4 have name 1 */
#endif
#ifndef DELETES
#define DELETES UIDS            /* of which users delete these */
#endif
#ifndef LATE
#define LATE 0                  /* requests that fail and may land later */
#endif
#ifndef CRASH
#define CRASH 0                 /* restarts of manager 0 */
#endif
#ifndef FORCE
#define FORCE 0                 /* IPAddresses that a user forces away */
#endif
#ifndef VANISH
#define VANISH 0                /* claims that end in spite of our finalizer */
#endif
#ifndef EDIT
#define EDIT 0                  /* edits of the pool's spec */
#endif
#ifndef RESTORE
#define RESTORE 0               /* claims that come back with another uid, with what they remember */
#endif
#ifndef WIPE
#define WIPE 0                  /* times that the status of the pool is lost */
#endif
#ifndef STALE
#define STALE 0                 /* answers and events that arrive after newer ones */
#endif
/* COOL: the pool has a reuse grace. BLOCK: name 1 is an IPAllocation. POOLS: each manager has a pool of its own,
 * with one address, and claims of one name go from one to the other. */

#define NAME(u) (((u)-1)%2)
#ifndef POOLS
#define NEXT 1
#else
#define NEXT 2
#endif
#ifdef BLOCK
#define ISBLOCK(u) (NAME(u)==1)
#else
#define ISBLOCK(u) false
#endif

/* A claim is uid, deleting, our finalizer, record (an address); an IPAddress is the uid of its claim and an
 * address. One byte each: equal bytes are the same resourceVersion, for a claim never changes back. */
#define UID(c)  ((c)&7)
#define DEL(c)  (((c)&8)!=0)
#define FIN(c)  (((c)&16)!=0)
#define REC(c)  ((c)>>5)
#define CLAIM(u,fin,rec) ((u)|((fin)<<4)|((rec)<<5))
#define LIVES(c) (UID(c)!=0 && !DEL(c))
#define OWNER(i) ((i)&7)
#define ADDR(i)  ((i)>>3)
#define IP(u,a)  ((u)|((a)<<3))

/* A map says who has address 1 and who has address 2: a uid, or 0 for nobody. */
#define AT(map,a)   (((map)>>(3*((a)-1)))&7)
#define ALL(map,a)  ((map)&(7<<(3*((a)-1))))
#define PUT(u,a)    ((u)<<(3*((a)-1)))

/* The API server. */
byte holder;                    /* status.allocator.holder */
byte inFlight;                  /* status.allocator.inFlight, a map */
byte claim[2], ip[2];           /* by name */
byte nextUID = 1;
byte cooling;                   /* status.cooling: a map to a name + 1 */
bool adopting;                  /* condition Ready is False with reason Adopting */
byte given[2];                  /* what the claim of a name was given first, for I4 */
bool orphan[2];                   /* the IPAddress came, or stayed, when its claim did not live any more */
byte resting;                   /* addresses whose grace is not over, a map to a name + 1, for I3 */
byte passed;                    /* entries of cooling whose time has come, a map */
bool longAgo = true;                  /* nothing is on its way any more from before the status was lost */

/* A request in the air. */
mtype = { none, fencing, committing, recording, creating, removing, dropping };
mtype air = none;
byte airU, airA, airOld;        /* for whom, which address, and the object that it was made on */
bool airValid;                  /* the pool is as it was when the request was made */
byte airMap, airCool;

bool calm;                      /* users do nothing any more: then managers take over only so often */
bool turns = true;
byte lates = LATE, crashes = CRASH, forces = FORCE, vanishes = VANISH, edits = EDIT, restores = RESTORE, wipes = WIPE, stales = STALE;

/* The managers. */
#define IDLE   0                /* not the holder */
#define FENCED 1                /* holder on record; both lists are to be read */
#define CLAIMS 2                /* claims listed */
#define ADDRS  3                /* IPAddresses listed */
#define TURN   4                /* pool.holder */
#define LISTED 5                /* listed before the write, where NO_ORDER has it so */
typedef Manager {
	byte turn;
	bool newest;            /* pool.base has the resourceVersion of the pool */
	byte base;              /* inFlight in pool.base, a map */
	byte grant;             /* pool.grants, a map; committed if it is in base */
	byte confirmed;           /* those of them that are done, a map */
	byte inherited;         /* those that were in flight at the takeover, a map */
	bool attempt;           /* pool.attempt: a commit without an answer */
	byte tried;             /* inFlight as it wanted to write it, a map */
	byte c[2], i[2];        /* pool.claims and pool.addrs: what the watches, lists and answers have shown */
	byte cool;              /* pool.cooling */
	bool quarantine;        /* pool.quarantineUntil */
	bool old;               /* its grants were committed too long ago */
	byte job;               /* a job that crew runs */
	byte jobU, jobA, jobC   /* for whom, with which address, and the claim as it was when the job began */
}
Manager M[2];
bool again[2];                  /* restarted */

#define RECORD 1
#define CREATE 2
#define REMOVE 3
#ifndef NO_RECORD_FIRST
#define FIRST RECORD
#else
#define FIRST CREATE
#endif
#define LETGO  4
#define VOID   5

#ifndef NO_OWN_ID
#define ID(m) (1+(m)+2*again[m])
#else
#define ID(m) 1
#endif

#ifndef POOLS
#define ISHOLDER(m) (holder==ID(m))
#define SETHOLDER(m) holder = ID(m)
#else
#define ISHOLDER(m) true
#define SETHOLDER(m) skip
#endif

#ifndef PLAIN
hidden byte n, a, x;            /* what a step works with */
#else
byte n, a, x;                   /* a breadth-first search takes none that is hidden */
#endif

/* ---------------------------------------------------------------------------------------- invariants */

/* I1: no address belongs to two IPAddresses that claims can use, or to one and a block. One whose claim is gone
 * is void (R2). */
#ifndef BLOCK
#define HAS(k) (ip[k]!=0 && OWNER(ip[k])==UID(claim[k]) -> ADDR(ip[k]) : 0)
#else
#define HAS(k) ((k)==1 -> REC(claim[1]) : (ip[k]!=0 && OWNER(ip[k])==UID(claim[k]) -> ADDR(ip[k]) : 0))
#endif
inline checkI1() { assert(HAS(0)==0 || HAS(0)!=HAS(1)) /* I1 */ }

/* I4: what a claim is given never changes while it lives. */
inline checkI4(uu, aa) {
	if
	:: UID(claim[NAME(uu)])==(uu) ->
		assert(given[NAME(uu)]==0 || given[NAME(uu)]==(aa)); /* I4 */
		given[NAME(uu)] = aa
	:: else
	fi
}

/* ------------------------------------------------------------------------------------ the API server */

/* A write of the pool gives it another resourceVersion. */
#ifndef POOLS
inline poolMoves(m) { M[0].newest = false; M[1].newest = false; airValid = false }
#else
inline poolMoves(m) { M[m].newest = false; airValid = airValid && airU!=ID(m) }
#endif
inline ends(nn) { claim[nn] = 0; given[nn] = 0 }
inline makeIP(uu, aa) {
	if
	:: ip[NAME(uu)]==0 -> ip[NAME(uu)] = IP(uu,aa); checkI4(uu,aa); checkI1();
		orphan[NAME(uu)] = (UID(claim[NAME(uu)])!=(uu) || DEL(claim[NAME(uu)]))
	:: else
	fi
}
inline takeOff(nn, was) {
	if
#ifndef NO_UID_DELETE
	:: ip[nn]==(was) ->
#else
	:: ip[nn]!=0 ->
#endif
		/* Nobody takes the address of a claim that lives. */
		assert(!(OWNER(ip[nn])==UID(claim[nn]) && LIVES(claim[nn]))); /* I4 */
		ip[nn] = 0; orphan[nn] = false
	:: else
	fi
}

/* ------------------------------------------------------------------------------ what a manager learns */

#define COMMITTED(m,aa) (AT(M[m].grant,aa)!=0 && AT(M[m].base,aa)==AT(M[m].grant,aa))

/* A pool sees its own claims and IPAddresses. */
#ifndef POOLS
#define SHOWNCLAIM(m,nn) claim[nn]
#define SHOWNADDR(m,nn) ip[nn]
#else
#define POOLOF(u) ((u)==3)
#define SHOWNCLAIM(m,nn) (UID(claim[nn])!=0 && POOLOF(UID(claim[nn]))==(m) -> claim[nn] : 0)
#define SHOWNADDR(m,nn) (ADDR(ip[nn])==(m)+1 -> ip[nn] : 0)
#endif

/* What was read of an object and arrives late: a watch event, an answer, a list. */
#if STALE
bool stuck;                     /* it was taken although what was known is newer: no event will set it right */
#define STUCK(m,k,now) (stuck && staleM==(m) && staleK==(k) && staleV==(now))
bool staleKept, staleOld;       /* something is on its way; what is known is newer */
byte staleM, staleK, staleV;    /* to whom, of which object (claims 0 and 1, IPAddresses 2 and 3), what */
#define NEWERC(m,nn) staleOld = staleOld || (staleKept && staleM==(m) && staleK==(nn))
#define NEWERI(m,nn) staleOld = staleOld || (staleKept && staleM==(m) && staleK==(nn)+2)
#else
#define STUCK(m,k,now) false
#define NEWERC(m,nn) skip
#define NEWERI(m,nn) skip
#endif

/* go: grants.PoolState.confirmGrant */
#define DONE(m,uu) (UID(M[m].c[NAME(uu)])!=(uu) || OWNER(M[m].i[NAME(uu)])==(uu) || \
	(ISBLOCK(uu) && REC(M[m].c[NAME(uu)])!=0))
#define DONEAT(m,aa) (COMMITTED(m,aa) && DONE(m,AT(M[m].grant,aa)) -> ALL(M[m].grant,aa) : 0)
inline confirm(m) { M[m].confirmed = M[m].confirmed | DONEAT(m,1) | DONEAT(m,2) }

/* Who is not the holder keeps nothing here: the takeover lists it anew.
 * go: grants.PoolState.ObserveClaimant, grants.PoolState.ForgetClaimant, grants.PoolState.resolveNameOwner */
inline seeClaim(m, nn) {
	if
	:: M[m].turn==TURN || M[m].turn==CLAIMS -> M[m].c[nn] = SHOWNCLAIM(m,nn); confirm(m); NEWERC(m,nn)
	:: else
	fi
}
/* go: grants.PoolState.ObserveAddress, grants.PoolState.ForgetAddress, grants.Space.restoreRecord */
inline seeAddr(m, nn) {
	if
	:: M[m].turn==TURN || M[m].turn==ADDRS -> M[m].i[nn] = SHOWNADDR(m,nn); confirm(m); NEWERI(m,nn);
#ifndef NO_SEEN
		/* An IPAddress says what its claim was given, where the record was not seen yet. */
		M[m].c[nn] = M[m].c[nn] | (M[m].i[nn]!=0 && OWNER(M[m].i[nn])==UID(M[m].c[nn]) && REC(M[m].c[nn])==0 -> ADDR(M[m].i[nn])<<5 : 0)
#endif
	:: else
	fi
}

/* go: grants.PoolState.LoseTerm */
inline loseTerm(m) {
	M[m].turn = IDLE; M[m].newest = false; M[m].attempt = false; M[m].tried = 0;
	M[m].base = 0; M[m].grant = 0; M[m].confirmed = 0; M[m].inherited = 0;
	M[m].c[0] = 0; M[m].c[1] = 0; M[m].i[0] = 0; M[m].i[1] = 0;
	M[m].cool = 0; M[m].quarantine = false; M[m].old = false
}
inline endJob(m) { M[m].job = 0; M[m].jobU = 0; M[m].jobA = 0; M[m].jobC = 0 }

/* ---------------------------------------------------------------------------------------- the ledger */

#ifndef NO_RECORD_TAKEN
#define RECORDED(m,aa) (REC(M[m].c[0])==(aa) || REC(M[m].c[1])==(aa))
#else
#define RECORDED(m,aa) false
#endif
/* go: ledger.freeSpace.TakeUnit */
#ifndef POOLS
#define IN(m,aa) true
#else
#define IN(m,aa) ((aa)==(m)+1)
#endif
#define FREE(m,aa) (IN(m,aa) && AT(M[m].grant,aa)==0 && !RECORDED(m,aa) && ADDR(M[m].i[0])!=(aa) && ADDR(M[m].i[1])!=(aa) && AT(M[m].cool,aa)==0)
/* go: grants.Inventory.FindCoolingRange */
#define RESTS(m,nn,aa) (AT(M[m].cool,aa)==(nn)+1 && MINE(m,nn,aa))
/* go: grants.Inventory.RecordedRangeFor, grants.Inventory.isBlocking */
#define MINE(m,nn,aa) (AT(M[m].grant,aa)==0 && ADDR(M[m].i[1-(nn)])!=(aa) && REC(M[m].c[1-(nn)])!=(aa))

#define HASGRANT(m,uu) (AT(M[m].grant,1)==(uu) || AT(M[m].grant,2)==(uu))
#define BUSY(m,nn) (M[m].job!=0 && NAME(M[m].jobU)==(nn))
#define STRAY(m,nn) (M[m].i[nn]!=0 && OWNER(M[m].i[nn])!=UID(M[m].c[nn]))
/* go: grants.Inventory.NeedFor, claims.claimKind.DesignatedRange */
#ifndef NO_NAME_WAIT
#define WAITS(m,nn) (LIVES(M[m].c[nn]) && M[m].i[nn]==0 && !HASGRANT(m,UID(M[m].c[nn])) && !BUSY(m,nn))
#else
#define WAITS(m,nn) (LIVES(M[m].c[nn]) && OWNER(M[m].i[nn])!=UID(M[m].c[nn]) && !HASGRANT(m,UID(M[m].c[nn])) && !BUSY(m,nn))
#endif
#define ANY(m,nn) (RESTS(m,nn,1) -> 1 : (RESTS(m,nn,2) -> 2 : (FREE(m,1) -> 1 : (FREE(m,2) -> 2 : 0))))
#define CHOSEN(m,nn) (REC(M[m].c[nn])==0 -> ANY(m,nn) : (MINE(m,nn,REC(M[m].c[nn])) -> REC(M[m].c[nn]) : 0))
/* go: allocator.admissionPolicy.newAdmissionFunc, grants.StatusBuilder.ClosedReason */
#ifndef NO_QUARANTINE
#define CLOSED(m,nn) (M[m].quarantine && !longAgo && REC(M[m].c[nn])==0)
#else
#define CLOSED(m,nn) false
#endif
#define PLANS(m,nn) (WAITS(m,nn) && !CLOSED(m,nn) && CHOSEN(m,nn)!=0)
/* go: grants.Releases.CoolReleases, grants.Cooling.NeedsCooling, grants.Inventory.ReleasableRange */
#ifdef COOL
#define MUSTREST(m,nn) (DEL(M[m].c[nn]) && OWNER(M[m].i[nn])==UID(M[m].c[nn]) && AT(M[m].cool,ADDR(M[m].i[nn]))==0)
#else
#define MUSTREST(m,nn) false
#endif
#define COOLS(m) (MUSTREST(m,0) || MUSTREST(m,1) || (M[m].cool&passed)!=0)
/* go: grants.Grants.HasStaleGrants */
#define AGED(m) (M[m].old && (M[m].grant&~M[m].confirmed)!=0)
#define DUE(m) (M[m].turn==TURN && !M[m].attempt && (PLANS(m,0) || PLANS(m,1) || M[m].confirmed!=0 || COOLS(m) || AGED(m)))
/* go: grants.Inventory.IsAdoptable */
#ifndef NO_ADOPT_PROOF
#define ADOPTABLE(m,nn) (LIVES(M[m].c[nn]) && REC(M[m].c[nn])==ADDR(M[m].i[nn]))
#else
#define ADOPTABLE(m,nn) LIVES(M[m].c[nn])
#endif

/* go: grants.Planner.PlanGrants, grants.Planner.ChooseRange */
inline plan(m) {
	M[m].cool = M[m].cool & ~passed;        /* go: grants.Releases.ExpireCooling */
	for (n : 0 .. 1) {
		if
		:: PLANS(m,n) -> a = CHOSEN(m,n); M[m].grant = M[m].grant | PUT(UID(M[m].c[n]),a); M[m].cool = M[m].cool & ~ALL(63,a)
		:: MUSTREST(m,n) -> M[m].cool = M[m].cool | PUT(n+1,ADDR(M[m].i[n]))
		:: else
		fi
	}
	M[m].tried = M[m].grant & ~M[m].confirmed
}
#define STAYS(m,aa) (AT(M[m].tried,aa)!=0 -> ALL(M[m].grant,aa) : 0)
/* go: grants.PoolState.CompleteCommit */
inline landed(m) {
	M[m].grant = STAYS(m,1) | STAYS(m,2);
	M[m].confirmed = M[m].confirmed & M[m].grant; M[m].inherited = M[m].inherited & M[m].grant;
	M[m].base = M[m].tried; M[m].tried = 0; M[m].attempt = false; M[m].old = false;
	confirm(m)
}
/* go: grants.PoolState.RollbackCommit */
inline rollback(m) {
	M[m].grant = (COMMITTED(m,1) -> ALL(M[m].grant,1) : 0) | (COMMITTED(m,2) -> ALL(M[m].grant,2) : 0);
	M[m].tried = 0; M[m].attempt = false; M[m].cool = cooling
}
/* I3: an address is given to another claim only when its IPAddress is gone and its grace is over. */
#define THERE(map,aa,k) (AT(map,aa)!=0 && ip[k]!=0 && ADDR(ip[k])==(aa) && OWNER(ip[k])!=AT(map,aa) && !orphan[k])
#define EARLY(map,aa) (AT(map,aa)!=0 && AT(resting,aa)!=0 && AT(resting,aa)!=NAME(AT(map,aa))+1)
inline checkI3(map) {
	assert(!EARLY(map,1) && !EARLY(map,2)); /* I3 */
	assert(!THERE(map,1,0) && !THERE(map,1,1) && !THERE(map,2,0) && !THERE(map,2,1)); /* I3 */
	 resting = resting & ~((AT(map,1)!=0 -> 7 : 0)|(AT(map,2)!=0 -> 56 : 0))
}
#define ADOPTS(m) (M[m].quarantine && !longAgo)
/* go: allocator.statusWriter.updatePoolStatus */
#ifndef POOLS
#define MERGED(m,was,new) (new)
#define PART(m,map) (map)
#else
#define MERGED(m,was,new) (((was)&~ALL(63,(m)+1))|(new))
#define PART(m,map) ALL(map,(m)+1)
#endif
inline updateStatus(m) {
	SETHOLDER(m); inFlight = MERGED(m,inFlight,M[m].tried); adopting = ADOPTS(m);
	cooling = M[m].cool; passed = passed & M[m].cool; checkI3(inFlight);
	poolMoves(m); M[m].newest = true
}

#define LATER (lates>0 && air==none)
#define SAID(m)  (ISHOLDER(m) && PART(m,inFlight)==M[m].tried && (M[m].tried!=M[m].base || cooling==M[m].cool))
#define STILL(m) (ISHOLDER(m) && PART(m,inFlight)==M[m].base)

#ifndef NO_CAS
#define WRITABLE(m) M[m].newest
#else
#define WRITABLE(m) true
#endif

/* Something is to be done. go: grants.PoolState.hasTakeoverWork, grants.PoolState.MayTakeOver */
#define UNDONE(nn) (DEL(claim[nn]) || (ISBLOCK((nn)+1) -> UID(claim[nn])!=0 && REC(claim[nn])==0 : OWNER(ip[nn])!=UID(claim[nn])))
#define WORK (UNDONE(0) || UNDONE(1) || inFlight!=0 || (cooling&passed)!=0)

#define USED(m) (M[m].grant!=0 || M[m].i[0]!=0 || M[m].i[1]!=0 || REC(M[m].c[0])!=0 || REC(M[m].c[1])!=0)
/* go: grants.PoolState.RebuildLedger */
inline rebuild(m) {
	M[m].turn = TURN;
#ifndef NO_INFLIGHT
	M[m].grant = M[m].base; M[m].inherited = M[m].base;
#endif
	M[m].cool = cooling;            /* go: grants.PoolState.LoadCoolingAndHeld */
	M[m].old = (M[m].grant!=0);     /* nothing is written on them before a commit of ours */
#ifndef NO_EMPTY
	M[m].quarantine = adopting;
#else
	M[m].quarantine = adopting && USED(m);
#endif
	/* go: grants.Quarantine.RestoreQuarantine, grants.Quarantine.AdoptingCondition */
	confirm(m)
}

#ifndef NO_SETTLE_PROOF
#define ENDSGRANT(m) skip
#else
#define ENDSGRANT(m) M[m].confirmed = M[m].confirmed | (COMMITTED(m,M[m].jobA) && AT(M[m].grant,M[m].jobA)==M[m].jobU -> ALL(M[m].grant,M[m].jobA) : 0)
#endif

#ifndef NO_ORDER
#define TAKENOVER(m) rebuild(m)
#else
#define TAKENOVER(m) M[m].turn = LISTED
#endif

#define MAYWORK(m) (M[m].turn==TURN && !M[m].attempt && M[m].job==0)

#define BEHINDC(m,nn) (M[m].c[nn]!=SHOWNCLAIM(m,nn))
#define BEHINDI(m,nn) (M[m].i[nn]!=SHOWNADDR(m,nn))

#ifndef NO_NEWER
#define OLDTOO false
#else
#define OLDTOO true
#endif

proctype manager(byte m) {
end:	do

	/* The watches: one of claims, one of IPAddresses. */
	:: d_step { M[m].turn==TURN && (BEHINDC(m,0) || BEHINDC(m,1)) && !STUCK(m,0,claim[0]) && !STUCK(m,1,claim[1]) -> printf("manager %d: the watch shows the claims\n",m); seeClaim(m,0); seeClaim(m,1); skip }
	:: d_step { M[m].turn==TURN && (BEHINDI(m,0) || BEHINDI(m,1)) && !STUCK(m,2,ip[0]) && !STUCK(m,3,ip[1]) -> printf("manager %d: the watch shows the IPAddresses\n",m); seeAddr(m,0); seeAddr(m,1); skip }

	/* Takeover: the write, then the lists. A write on an older pool is refused, so that reading the pool and
	 * writing it are one step. go: allocator.statusWriter.takeOverPool, allocator.statusWriter.fencePool */
#ifndef NO_ORDER
#define FENCES(m) (M[m].turn==IDLE && WORK && (!calm || turns || holder==ID(m) || holder==0))
#define LISTS(m) (M[m].turn==FENCED)
#else
#define FENCES(m) (M[m].turn==LISTED)
#define LISTS(m) (M[m].turn==IDLE && WORK)
#endif
	:: d_step { FENCES(m) -> printf("manager %d: reads the pool and writes itself as holder\n",m);
		M[m].base = inFlight;
		if
		:: holder!=ID(m) -> turns = turns && (!calm || holder==0); adopting = adopting || holder==0; holder = ID(m); poolMoves(m)
		:: else         /* its own write, of which the answer was lost */
		fi;
		M[m].newest = true;
#ifndef NO_ORDER
		M[m].turn = FENCED;
#else
		rebuild(m);
#endif
		skip }
	:: d_step { M[m].turn==IDLE && WORK && LATER && holder!=ID(m) -> printf("manager %d: writes itself as holder, without an answer\n",m);
		lates--; air = fencing; airU = ID(m); airValid = true }
	/* go: allocator.sharedPoolLister.listNamespace */
#ifdef NO_LIST
	:: d_step { LISTS(m) -> rebuild(m); skip }
#else
	:: d_step { LISTS(m) -> M[m].turn = ADDRS; printf("manager %d: lists IPAddresses\n",m); seeAddr(m,0); seeAddr(m,1); skip }
#ifdef NO_CLAIM_LIST
	:: d_step { M[m].turn==ADDRS -> rebuild(m); skip }
#else
	:: d_step { M[m].turn==ADDRS -> M[m].turn = CLAIMS; printf("manager %d: lists claims\n",m); seeClaim(m,0); seeClaim(m,1); TAKENOVER(m); skip }
	:: d_step { LISTS(m) -> M[m].turn = CLAIMS; printf("manager %d: lists claims\n",m); seeClaim(m,0); seeClaim(m,1); skip }
	:: d_step { M[m].turn==CLAIMS -> M[m].turn = ADDRS; printf("manager %d: lists IPAddresses\n",m); seeAddr(m,0); seeAddr(m,1); TAKENOVER(m); skip }
#endif
#endif

	/* Plan and commit. go: allocator.Allocator.reconcileBatch, allocator.statusWriter.commitGrants, allocator.statusWriter.sendCommit */
	:: d_step { DUE(m) && WRITABLE(m) -> plan(m);
		printf("manager %d: commits; in flight: 1 for uid %d, 2 for uid %d\n",m,AT(M[m].tried,1),AT(M[m].tried,2)); updateStatus(m); landed(m); skip }
	:: d_step { DUE(m) && M[m].newest && LATER -> plan(m); M[m].attempt = true;
		printf("manager %d: commits, without an answer; in flight: 1 for uid %d, 2 for uid %d\n",m,AT(M[m].tried,1),AT(M[m].tried,2));
		lates--; air = committing; airU = ID(m); airValid = true; airMap = M[m].tried; airCool = M[m].cool;
#ifdef NO_READBACK
		landed(m);
#endif
		skip }
	/* The answer was lost: a live read decides (R4). go: allocator.statusWriter.sendCommit */
	:: d_step { M[m].attempt && M[m].newest -> printf("manager %d: sends its commit again\n",m); updateStatus(m); landed(m); skip }
	:: d_step { M[m].attempt && !M[m].newest ->
		if
		:: SAID(m) -> printf("manager %d: reads the pool: its commit has landed\n",m); M[m].newest = true; landed(m)
		:: !SAID(m) && STILL(m) -> printf("manager %d: reads the pool: its commit cannot land any more\n",m); M[m].newest = true; rollback(m)
		:: else -> printf("manager %d: reads the pool: its turn is lost\n",m); loseTerm(m)
		fi; skip }

	/* Another pool than that of the last write. go: grants.PoolState.RefreshBasePool, grants.PoolState.LoseTerm */
	:: d_step { (M[m].turn==TURN || M[m].turn==FENCED) && !M[m].attempt && !M[m].newest ->
		if
		:: ISHOLDER(m) -> printf("manager %d: takes the pool as it is now\n",m); M[m].newest = true; M[m].base = PART(m,inFlight); M[m].cool = cooling
		:: else -> printf("manager %d: sees that its turn is lost\n",m); loseTerm(m)
		fi; skip }

	/* What is granted is written. go: allocator.Allocator.dispatchJobs, allocator.claimantJobs.serveClaimant, claims.claimKind.NextServeStep */
#ifndef NO_AGE
#define YOUNG(m) !M[m].old
#else
#define YOUNG(m) true
#endif
#define SERVES(m,aa,uu) (MAYWORK(m) && YOUNG(m) && COMMITTED(m,aa) && AT(M[m].confirmed,aa)==0 && \
	LIVES(M[m].c[NAME(uu)]) && UID(M[m].c[NAME(uu)])==(uu) && ADDR(M[m].i[1-NAME(uu)])!=(aa) && \
	(M[m].i[NAME(uu)]==0 || REC(M[m].c[NAME(uu)])==0) && !(ISBLOCK(uu) && REC(M[m].c[NAME(uu)])!=0))
	/* Somebody recorded another address: what this manager believes is old. */
#define OTHERWISE(m,aa,uu) (SERVES(m,aa,uu) && REC(M[m].c[NAME(uu)])!=0 && REC(M[m].c[NAME(uu)])!=(aa) && AT(M[m].inherited,aa)==0)
	:: d_step { OTHERWISE(m,1,AT(M[m].grant,1)) || OTHERWISE(m,2,AT(M[m].grant,2)) ->
		printf("manager %d: finds another record on a claim, gives its turn up\n",m); loseTerm(m) }
	:: d_step { SERVES(m,1,AT(M[m].grant,1)) && !OTHERWISE(m,1,AT(M[m].grant,1)) -> printf("manager %d: begins to write grant of 1\n",m);
		M[m].jobU = AT(M[m].grant,1); M[m].jobA = 1; M[m].jobC = M[m].c[NAME(M[m].jobU)];
		M[m].job = (REC(M[m].jobC)==1 -> CREATE : FIRST) }
	:: d_step { SERVES(m,2,AT(M[m].grant,2)) && !OTHERWISE(m,2,AT(M[m].grant,2)) -> printf("manager %d: begins to write grant of 2\n",m);
		M[m].jobU = AT(M[m].grant,2); M[m].jobA = 2; M[m].jobC = M[m].c[NAME(M[m].jobU)];
		M[m].job = (REC(M[m].jobC)==2 -> CREATE : FIRST) }

	/* The record, before anything else (R1). go: grants.WriteRecordStep, allocator.objectWriter.patchClaimant */
	:: d_step { M[m].job==RECORD ->
		printf("manager %d: records %d on claim uid %d: %d\n",m,M[m].jobA,M[m].jobU,M[m].jobC==claim[NAME(M[m].jobU)]);
		n = NAME(M[m].jobU);
		if
#ifdef NO_RECORD
		:: M[m].jobC==claim[n] -> claim[n] = CLAIM(M[m].jobU,1,0); M[m].job = CREATE; M[m].jobC = 0; seeClaim(m,n)
#elif defined(NO_PATCH_FENCE)
		:: claim[n]!=0 -> claim[n] = CLAIM(UID(claim[n])|(claim[n]&8),1,M[m].jobA); M[m].job = CREATE; M[m].jobC = 0; seeClaim(m,n)
#else
		:: M[m].jobC==claim[n] ->
			assert(REC(claim[n])==0 || REC(claim[n])==M[m].jobA); /* I4 */
			claim[n] = CLAIM(M[m].jobU,1,M[m].jobA); M[m].job = (FIRST==RECORD -> CREATE : 0); M[m].jobC = 0; seeClaim(m,n);
			if
			:: M[m].job==0 -> endJob(m)
			:: ISBLOCK(M[m].jobU) -> checkI4(M[m].jobU,M[m].jobA); checkI1(); endJob(m)
			:: else
			fi
#endif
		:: else ->      /* go: allocator.objectWriter.patchClaimant, allocator.objectWriter.refreshClaimant */
			seeClaim(m,n);
			endJob(m)
		fi; skip }
	:: d_step { M[m].job==RECORD && LATER && M[m].jobC==claim[NAME(M[m].jobU)] ->
		lates--; air = recording; printf("manager %d: records %d on claim uid %d, without an answer\n",m,M[m].jobA,M[m].jobU); airU = M[m].jobU; airA = M[m].jobA; airOld = M[m].jobC; ENDSGRANT(m); endJob(m) }

	/* The IPAddress. go: allocator.objectWriter.createAddress */
	:: d_step { M[m].job==CREATE -> printf("manager %d: creates IPAddress %d of uid %d: %d\n",m,M[m].jobA,M[m].jobU,ip[NAME(M[m].jobU)]==0); makeIP(M[m].jobU,M[m].jobA); n = NAME(M[m].jobU); seeAddr(m,n);
#ifndef NO_RECORD_FIRST
		endJob(m)
#else
		if
		:: M[m].jobC!=0 -> M[m].job = RECORD
		:: else -> endJob(m)
		fi;
		skip
#endif
	}
	:: d_step { M[m].job==CREATE && LATER -> printf("manager %d: creates IPAddress %d of uid %d, without an answer\n",m,M[m].jobA,M[m].jobU); lates--; air = creating; airU = M[m].jobU; airA = M[m].jobA; ENDSGRANT(m); endJob(m) }
#ifdef NO_RECREATE_COMMIT
	:: d_step { MAYWORK(m) && LIVES(M[m].c[0]) && REC(M[m].c[0])!=0 && M[m].i[0]==0 && !HASGRANT(m,UID(M[m].c[0])) ->
		M[m].job = CREATE; M[m].jobU = UID(M[m].c[0]); M[m].jobA = REC(M[m].c[0]) }
#endif

	/* An IPAddress of an earlier claim of the name that this one remembers (R2). go: claims.needsAddressRepair */
#ifndef NO_LIVE_ADOPT
#define ALIVE(m,nn) (M[m].c[nn]==claim[nn])
#else
#define ALIVE(m,nn) true
#endif
#define REPAIRS(m,nn) (MAYWORK(m) && STRAY(m,nn) && ADOPTABLE(m,nn))
	:: d_step { (REPAIRS(m,0) || REPAIRS(m,1)) ->
		n = (REPAIRS(m,0) -> 0 : 1); printf("manager %d: adopts IPAddress of name %d: %d\n",m,n,ip[n]==M[m].i[n]);
		if
		:: ip[n]==M[m].i[n] && ALIVE(m,n) ->
			assert(OWNER(ip[n])!=UID(claim[n]) || DEL(claim[n])); /* I4 */
			ip[n] = IP(UID(M[m].c[n]),ADDR(ip[n])); orphan[n] = !LIVES(claim[n]);
#ifdef NO_ADOPT_PROOF
			claim[n] = CLAIM(UID(claim[n]),1,ADDR(ip[n])); seeClaim(m,n);
#endif
 checkI4(OWNER(ip[n]),ADDR(ip[n])); checkI1()
		:: else -> seeClaim(m,n)
		fi;
		seeAddr(m,n); skip }

	/* Release: only while a live read shows the pool as this manager wrote it (R6).
	 * go: allocator.Allocator.dispatchJobs, allocator.claimantJobs.releaseClaimant */
#ifndef NO_LIVE_POOL
#define OWNS(m) STILL(m)
#else
#define OWNS(m) true
#endif
#define ENDED(m,uu) (AT(M[m].confirmed,1)==(uu) || AT(M[m].confirmed,2)==(uu))
#ifndef NO_COOL_FIRST
#define RESTED(m,nn) !MUSTREST(m,nn)
#else
#define RESTED(m,nn) true
#endif
#define RELEASES(m,nn) (MAYWORK(m) && DEL(M[m].c[nn]) && RESTED(m,nn) && OWNS(m) && !ENDED(m,UID(M[m].c[nn])))
	:: d_step { RELEASES(m,0) -> printf("manager %d: reads the pool, begins to release name 0\n",m); M[m].job = REMOVE; M[m].jobC = M[m].c[0]; M[m].jobU = UID(M[m].c[0]);
		M[m].jobA = (OWNER(M[m].i[0])==UID(M[m].c[0]) -> ADDR(M[m].i[0]) : 0) }
	/* go: blocks.allocationKind.NextReleaseStep */
	:: d_step { RELEASES(m,1) -> printf("manager %d: reads the pool, begins to release name 1\n",m); M[m].job = (ISBLOCK(2) -> LETGO : REMOVE); M[m].jobC = M[m].c[1]; M[m].jobU = UID(M[m].c[1]);
		M[m].jobA = (OWNER(M[m].i[1])==UID(M[m].c[1]) -> ADDR(M[m].i[1]) : 0) }
	/* go: claims.claimKind.NextReleaseStep, grants.RemoveAddressStep, allocator.objectWriter.deleteAddress, allocator.objectWriter.verifyAddressGone */
	:: d_step { M[m].job==REMOVE ->
		n = NAME(M[m].jobU); x = IP(M[m].jobU,M[m].jobA);
		printf("manager %d: sees to it that IPAddress of uid %d is gone: %d\n",m,M[m].jobU,ip[n]==x || OWNER(ip[n])!=M[m].jobU);
		if
		:: M[m].jobA!=0 -> M[m].job = (ip[n]==x -> LETGO : 0); takeOff(n,x); seeAddr(m,n)
#ifndef NO_LIVE_ADDRESS
		:: else -> M[m].job = (OWNER(ip[n])==M[m].jobU -> 0 : LETGO); seeAddr(m,n)
#else
		:: else -> M[m].job = LETGO
#endif
		fi;
		M[m].jobA = 0;
		if
		:: M[m].job==0 -> endJob(m)
		:: else
		fi; skip }
	:: d_step { M[m].job==REMOVE && LATER && M[m].jobA!=0 && ip[NAME(M[m].jobU)]==IP(M[m].jobU,M[m].jobA) ->
		printf("manager %d: removes IPAddress of uid %d, without an answer\n",m,M[m].jobU); lates--; air = removing; airU = M[m].jobU; airA = M[m].jobA; endJob(m) }
	/* go: grants.Grants.EndGrant, grants.RemoveFinalizerStep */
	:: d_step { M[m].job==LETGO ->
		n = NAME(M[m].jobU);
		printf("manager %d: lets go of claim uid %d: %d\n",m,M[m].jobU,!HASGRANT(m,M[m].jobU) && M[m].jobC==claim[n]);
		if
#ifndef NO_GRANT_CHECK
		:: HASGRANT(m,M[m].jobU) -> a = (AT(M[m].grant,1)==M[m].jobU -> 1 : 2);
			M[m].confirmed = M[m].confirmed | (COMMITTED(m,a) -> ALL(M[m].grant,a) : 0)
#endif
		:: else ->
			if
#ifndef NO_PATCH_FENCE
			:: M[m].jobC==claim[n] -> ends(n)
#else
			:: claim[n]!=0 ->
				assert(DEL(claim[n])); /* I4 */
				ends(n)
#endif
			:: else
			fi;
			seeClaim(m,n)
		fi;
		endJob(m) }
	:: d_step { M[m].job==LETGO && LATER && !HASGRANT(m,M[m].jobU) && M[m].jobC==claim[NAME(M[m].jobU)] ->
		printf("manager %d: lets go of claim uid %d, without an answer\n",m,M[m].jobU); lates--; air = dropping; airU = M[m].jobU; airOld = M[m].jobC; endJob(m) }

#ifndef NO_VOID
	/* An IPAddress without a claim: void if a live read proves it (R2).
	 * go: allocator.addressJobs.runOrphanJob, allocator.addressJobs.resolveOrphan */
#define STRAYS(m,nn) (MAYWORK(m) && STRAY(m,nn) && !ADOPTABLE(m,nn) && (restores==0 || CONTESTED(m,nn)))
/* go: grants.Inventory.IsOrphanConflicting, grants.Inventory.NextOrphanCheck */
#define CONTESTED(m,nn) (M[m].c[nn]!=0 || !MINE(m,nn,ADDR(M[m].i[nn])))
	:: d_step { (STRAYS(m,0) || STRAYS(m,1)) ->
		n = (STRAYS(m,0) -> 0 : 1);
#ifndef NO_VOID_PROOF
		seeClaim(m,n);
#endif
		if
		:: STRAYS(m,n) -> printf("manager %d: IPAddress of name %d is void\n",m,n); M[m].job = VOID; M[m].jobU = OWNER(M[m].i[n]); M[m].jobA = ADDR(M[m].i[n])
		:: else
		fi; skip }
	:: d_step { M[m].job==VOID ->
		n = NAME(M[m].jobU); x = IP(M[m].jobU,M[m].jobA);
		printf("manager %d: removes void IPAddress of uid %d: %d\n",m,M[m].jobU,ip[n]==x);
		takeOff(n,x); seeAddr(m,n); endJob(m) }
#endif

#if CRASH
	:: d_step { m==0 && crashes>0 && !calm && (M[m].turn!=IDLE || M[m].job!=0) -> printf("manager %d: restarts\n",m); crashes--; loseTerm(m); endJob(m); again[m] = true }
#endif
#if STALE
	/* go: term.Tombstones.Has, term.IsNewerVersion */
	:: d_step { staleKept && staleM==m && (M[m].turn!=TURN || (staleOld && !OLDTOO)) -> staleKept = false; staleOld = false; staleM = 0; staleK = 0; staleV = 0 }
	:: d_step { staleKept && staleM==m && M[m].turn==TURN && (!staleOld || OLDTOO) ->
		printf("manager %d: is shown something old\n",m);
		if
		:: staleK<2 -> M[m].c[staleK] = staleV
		:: else -> M[m].i[staleK-2] = staleV
		fi;
		confirm(m); staleKept = false;
		if
		:: staleOld -> stuck = true; staleOld = false; staleV = (staleK<2 -> claim[staleK] : ip[staleK-2])
		:: else -> staleM = 0; staleK = 0; staleV = 0
		fi; skip }
	:: d_step { stales>0 && !staleKept && M[m].turn==TURN && M[m].i[0]!=ip[0] -> stales--; staleKept = true; staleM = m; staleK = 2; staleV = ip[0] }
	:: d_step { stales>0 && !staleKept && M[m].turn==TURN && M[m].c[0]!=claim[0] -> stales--; staleKept = true; staleM = m; staleK = 0; staleV = claim[0] }
#endif
	od
}

/* Users, and what becomes of requests in the air. */
inline emptyAir() { air = none; airU = 0; airA = 0; airOld = 0; airValid = false; airMap = 0; airCool = 0 }
inline deletes(nn) {
	if
	:: FIN(claim[nn]) -> claim[nn] = claim[nn] | 8;
#ifdef COOL
		resting = resting | (OWNER(ip[nn])==UID(claim[nn]) -> PUT(nn+1,ADDR(ip[nn])) : 0)
#endif
	:: else -> ends(nn)
	fi
}
active proctype users() {
end:	do
	:: d_step { nextUID<=UIDS && claim[NAME(nextUID)]==0 && !(RESTORE && nextUID==3) ->
		printf("user: makes claim uid %d, name %d\n",nextUID,NAME(nextUID));
		claim[NAME(nextUID)] = CLAIM(nextUID,0,0); nextUID = nextUID+NEXT }
	:: d_step { LIVES(claim[0]) && UID(claim[0])<=DELETES -> printf("user: deletes claim uid %d\n",UID(claim[0])); deletes(0); skip }
	:: d_step { LIVES(claim[1]) && UID(claim[1])<=DELETES -> printf("user: deletes claim uid %d\n",UID(claim[1])); deletes(1); skip }
#if FORCE
	:: d_step { forces>0 && ip[0]!=0 -> printf("user: forces the IPAddress of name 0 away\n"); forces--; ip[0] = 0; orphan[0] = false }
#endif
#if VANISH
	:: d_step { vanishes>0 && FIN(claim[0]) -> printf("claim uid %d vanishes\n",UID(claim[0])); vanishes--; ends(0); orphan[0] = (ip[0]!=0) }
#endif
#if EDIT
	:: d_step { edits>0 -> printf("user: edits the pool\n"); edits--; poolMoves(0) }
#endif
#if RESTORE
	:: d_step { restores>0 && claim[0]==0 && ip[0]!=0 && nextUID==3 -> printf("claim of name 0 comes back as uid 3\n"); restores--; claim[0] = CLAIM(3,1,ADDR(ip[0])); nextUID++ }
#endif
#ifdef COOL
	:: d_step { AT(cooling,1)!=0 && AT(passed,1)==0 -> printf("the grace of 1 is over\n"); passed = passed | 7; resting = resting & ~7 }
	:: d_step { AT(cooling,2)!=0 && AT(passed,2)==0 -> printf("the grace of 2 is over\n"); passed = passed | 56; resting = resting & ~56 }
#endif
#if WIPE
	:: d_step { wipes>0 && holder!=0 -> printf("the status of the pool is lost\n"); wipes--; poolMoves(0); holder = 0; inFlight = 0; cooling = 0; longAgo = false }
	/* 75 s after the status was lost: no request of before is on its way, and what was committed then is old. */
	:: d_step { WIPE && wipes==0 && !longAgo && air==none && M[0].job!=RECORD && M[0].job!=CREATE && M[1].job!=RECORD && M[1].job!=CREATE && holder!=0 ->
		printf("75 s have passed\n");
		longAgo = true; M[0].old = (M[0].grant!=0); M[1].old = (M[1].grant!=0) }
#endif
#if LATE
	:: d_step { air==fencing -> printf("in the air: fencing lands\n"); x = airU;
		if
		:: airValid -> poolMoves(0); adopting = adopting || holder==0; holder = x
		:: else
		fi; emptyAir() }
	:: d_step { air==committing -> printf("in the air: committing lands\n");
		if
#ifndef POOLS
		:: airValid -> poolMoves(0); holder = airU; inFlight = airMap;
#else
		:: airValid -> n = airU-1; M[n].newest = false; inFlight = MERGED(n,inFlight,airMap);
#endif
			cooling = airCool; passed = passed & cooling; checkI3(inFlight)
		:: else
		fi; emptyAir() }
	:: d_step { air==recording -> printf("in the air: recording lands\n");
		if
		:: claim[NAME(airU)]==airOld -> claim[NAME(airU)] = CLAIM(airU,1,airA);
			if
			:: ISBLOCK(airU) -> checkI4(airU,airA); checkI1()
			:: else
			fi
		:: else
		fi; emptyAir() }
	:: d_step { air==creating -> printf("in the air: creating lands\n"); makeIP(airU,airA); emptyAir() }
	:: d_step { air==removing -> printf("in the air: removing lands\n"); n = NAME(airU); x = IP(airU,airA); takeOff(n,x); emptyAir() }
	:: d_step { air==dropping -> printf("in the air: dropping lands\n"); n = NAME(airU);
		if
		:: claim[n]==airOld -> ends(n)
		:: else
		fi; emptyAir() }
	:: d_step { air!=none -> printf("in the air: lost for good\n"); emptyAir() }
#endif
	:: air==none && (cooling&~passed)==0 && longAgo ->
#ifdef CALM
		calm = true;
#endif
		break
	od
}

/* I2: when nothing moves any more, everything is explained. */
active proctype rest() {
	timeout ->
#ifdef NO_OWN_ID
end:	false;          /* both believe that the turn is theirs, which does no harm yet */
#endif
#ifdef SEE_REST
	assert(false);
#endif
	d_step {
		assert(inFlight==0); /* I2 */
		for (n : 0 .. 1) {
			assert(!DEL(claim[n])); /* I2 */
#if !defined(NO_RECORD) && !defined(NO_RECORD_FIRST)
			assert(ISBLOCK(n+1) || ADDR(ip[n])==REC(claim[n])); /* I2 */
			assert(UID(claim[n])==0 || REC(claim[n])!=0); /* I2 */
#endif
			assert(ISBLOCK(n+1) || OWNER(ip[n])==UID(claim[n])) /* I2 */
		}
		for (n : 0 .. 1) {
			if
			:: M[n].turn==TURN ->
				assert(M[n].grant==0 && M[n].job==0 && !M[n].attempt); /* I2 */
				assert(!BEHINDC(n,0) && !BEHINDC(n,1) && !BEHINDI(n,0) && !BEHINDI(n,1)) /* I2 */
			:: else
			fi
		}
		skip
	}
}

init {
	atomic {
#ifdef POOLS
		M[0].turn = TURN; M[0].newest = true; M[1].turn = TURN; M[1].newest = true;
#endif
		run manager(0); run manager(1)
	}
}
