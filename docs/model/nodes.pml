/* The protocol by which Nodes get their pod CIDRs; see README.md.
 *
 * Managers serve one cluster. One ConfigMap in it, the fence, has the holder, the grants in flight and the ranges
 * that are open; every write of it carries the resourceVersion. A step is one access to the API server and what the
 * manager makes of the answer. A write of the fence, a patch of a Node and the removal of a finalizer are two: the
 * request is sent, and arrives at any later time, or never. Between two steps anything may happen.
 *
 * There are no counters of versions: of each request the model keeps whether it is still based on what is there. So
 * there is no bound on takeovers, commits and patches but where a scenario says so.
 *
 * "go:" names the function that a step stands for. NO_N_x takes rule N_x away; the scenarios are in check.sh. */

#ifndef NODES
#define NODES 2                 /* UIDs of Nodes; the third has the name of the first, and comes when that is gone */
#endif
#ifndef DELETES
#define DELETES 2               /* Nodes that are deleted */
#endif
#ifndef MANAGERS
#define MANAGERS 2              /* or 3 */
#endif
#ifndef DROPS
#define DROPS 1                 /* ClusterCIDRs that users delete */
#endif
/* LOST: the answer to a write of the fence may be lost. EDIT: edits of the ConfigMap by a human. CRASH: restarts of a
 * manager, one of two, whose last request is still on its way. FOREIGN: Nodes of which somebody else sets the CIDR.
 * RANGES: there are ClusterCIDRs. UNSELECT: times that a range is taken from this cluster, or given back, without
 * being deleted. WIPE: times that the ConfigMap is lost. BY_NODES: no wait afterwards if there is no Node at all,
 * whatever else there is. REFUSE: the API server may refuse a patch for good. STEALS: takeovers while another one
 * holds; no bound else. */

/* A grant is a number; what it has is a set. The CIDRs of a Node of two families are one grant. */
#if defined(NESTED)
#define CIDRS 3
#define MASK(c) ((c)==1 -> 3 : (c)>>1)                          /* a large one and its two halves */
#elif defined(FAMILIES)
#define CIDRS 3
#define MASK(c) ((c)==1 -> 5 : ((c)==2 -> 10 : ((c)==3 -> 9 : 0)))      /* two of IPv4: 1 and 2; two of IPv6: 4 and 8 */
#elif defined(SHARED)
#define CIDRS 2
#define MASK(c) ((c)!=0)                                        /* one CIDR, which two ClusterCIDRs have */
#elif defined(ONE)
#define CIDRS 1
#define MASK(c) (c)
#else
#define CIDRS 2
#define MASK(c) (c)
#endif
#define OVER(c,d) ((MASK(c)&MASK(d))!=0)
#if defined(NO_N_SIZES)
#define CLASH(c,d) ((c)!=0 && (c)==(d))
#elif defined(NO_N_FAMILIES)
#define CLASH(c,d) ((MASK(c)&MASK(d)&3)!=0)
#else
#define CLASH(c,d) OVER(c,d)
#endif

/* The range of a grant. */
#ifdef SHARED
#define KS 2
#define OF(c) ((c)-1)
#else
#define KS 1
#define OF(c) 0
#endif
#define BIT(k) (1<<(k))

/* A map says which grant each UID has, or 0. */
#define AT(map,u)  (((map)>>(2*(u)))&3)
#define PUT(u,c)   ((c)<<(2*(u)))
#define OFF(map,u) ((map)&(255-(3<<(2*(u)))))
#define NAME(u)    ((u)==2 -> 0 : (u))

/* ------------------------------------------------------------------------------------------ the API server */

#define NONE  0
#define LIVE  1
#define DYING 2                 /* deleted, and kept by a finalizer or a grace */
#define ENDED 3
byte st[NODES];
byte has[NODES];                /* podCIDRs: once set, they stay (F1) */
byte late[NODES];               /* patches that may land yet, a set of grants */
byte deletes = DELETES;
#ifdef FOREIGN
bool foreign[NODES];            /* somebody else has set them */
byte foreigns = FOREIGN;
#define OURS(u) (!foreign[u])
#else
#define OURS(u) true
#endif
#define HERE(u) (st[u]==LIVE || st[u]==DYING)

/* The fence. */
#define NOBODY 7
#define DEAD   8                /* a process that was killed */
byte holder = NOBODY;
byte fly;                       /* grants in flight, a map */
#ifdef RANGES
byte open;                      /* ranges, a set */
#define LIVING 0
#define DELETED 1
#define GONE_K 2
byte rs[KS];                    /* a ClusterCIDR */
bool mark[KS];                  /* its finalizer, or in fleets the entry of this cluster */
#ifdef UNSELECT
bool away;                      /* the range is not for this cluster */
byte turns = UNSELECT;          /* times that this changes */
#define UNWANTED(k) (rs[k]!=LIVING || away)
#else
#define UNWANTED(k) (rs[k]!=LIVING)
#endif
byte drops = DROPS;
#endif
#ifdef WIPE
bool exists, adopting;          /* the ConfigMap, and its word that nothing is to be granted yet */
bool over;                      /* the 75 s are over, since it was made */
#ifdef NO_N_STAMP
bool early;                     /* since it was sent */
#define WAITED (!ANY_LATE || early)
#else
#define WAITED !ANY_LATE
#endif
byte wipes = WIPE;
#define EXISTS exists
#else
#define EXISTS true
#endif
#ifdef EDIT
byte edits = EDIT;
#endif
#ifdef CRASH
byte crashes = CRASH;
#endif
#ifdef STEALS
byte steals = STEALS;
#endif

/* -------------------------------------------------------------------------------------------- the managers */

#define SEEN  4                 /* the Node is there, without CIDRs */
#define GONE  5                 /* there is proof that the UID is gone */

#define IDLE   0
#define FENCED 1                /* it has written itself as the holder, and not listed yet */
#define HOLD   2
#define LISTED 3                /* where NO_N_ORDER has it so */

#define FENCE  1                /* what is sent */
#define CREATE 2
#define COMMIT 3

typedef Manager {
	byte turn;
	bool newest;                /* base has the resourceVersion that is there */
	byte base;                  /* grants in flight as it knows them, a map */
	byte mem[NODES];            /* what it knows of each UID: nothing, a grant, SEEN or GONE */
	byte sends;                 /* a write of the fence that is not found out yet, */
	bool fits;                  /* whether it can land, */
	byte says;                  /* and the grants that it says */
#if defined(NO_N_INHERIT) || defined(REFUSE)
	byte own;                   /* what it has granted in this term, a map */
	byte tried;                 /* UIDs of which a patch may be on its way, a set */
#endif
	bool sameTerm, sameSeq;     /* the fence has the term, and the seq, that this manager wrote or sends */
#ifdef RANGES
	byte baseOpen, saysOpen;
	byte read;                  /* ranges that a read or write of this term has shown alive and marked */
	byte closing;               /* that it has seen deleted, or not for this cluster */
	byte shuts, shut;           /* of which the closing commit is sent, and confirmed */
	byte unused;                 /* of which a list has then shown no user */
	byte ends, endsFit;         /* of which the removal of the mark is on its way, and whether it can land */
	byte asBefore;              /* of which the object is as it was when the closing commit was sent */
#endif
#ifdef WIPE
	bool adopts;                /* as the fence said it */
	bool sure;                  /* it has a list from after the 75 s, or need not wait */
	bool saysSure;
	bool old;                   /* its turn was confirmed too long ago */
#ifdef NO_N_STAMP
	bool early;                 /* it has sent a new ConfigMap before the last one was lost */
#endif
#endif
}
Manager m[MANAGERS];
#if defined(CRASH) || defined(NO_N_SAME_AGAIN)
byte air, airSays, airOpen, airFrom;    /* a write of the fence that nobody waits for, and by whom */
bool airFits, airSure;
#endif
#ifndef PLAIN
hidden byte n, x;
#else
byte n, x;                      /* a breadth-first search takes none that is hidden */
#endif

/* ---------------------------------------------------------------------------------------------- invariants */

/* N1: no two Nodes that are there have overlapping CIDRs which we gave. */
#define BOTH(u,v) (HERE(u) && HERE(v) && OURS(u) && OURS(v) && OVER(has[u],has[v]))
#if NODES>2
inline checkN1() { assert(!(BOTH(0,1) || BOTH(1,2) || BOTH(0,2))) /* N1 */ }
#else
inline checkN1() { assert(!BOTH(0,1)) /* N1 */ }
#endif
/* N2: what is granted or given from a range keeps it. */
#define FROM(c,k) ((c)!=0 && OF(c)==(k))
#if NODES>2
#define IN_USE(k) ((HERE(0) && OURS(0) && FROM(has[0],k)) || (HERE(1) && OURS(1) && FROM(has[1],k)) || (HERE(2) && \
	OURS(2) && FROM(has[2],k)))
#define IN(map,k) (FROM(AT(map,0),k) || FROM(AT(map,1),k) || FROM(AT(map,2),k))
#define ANY_HAS ((HERE(0) && has[0]!=0) || (HERE(1) && has[1]!=0) || (HERE(2) && has[2]!=0))
#define ANY_LATE (late[0]!=0 || late[1]!=0 || late[2]!=0)
#define ANY_NODE (HERE(0) || HERE(1) || HERE(2))
#else
#define IN_USE(k) ((HERE(0) && OURS(0) && FROM(has[0],k)) || (HERE(1) && OURS(1) && FROM(has[1],k)))
#define IN(map,k) (FROM(AT(map,0),k) || FROM(AT(map,1),k))
#define ANY_HAS ((HERE(0) && has[0]!=0) || (HERE(1) && has[1]!=0))
#define ANY_LATE (late[0]!=0 || late[1]!=0)
#define ANY_NODE (HERE(0) || HERE(1))
#endif
#ifdef RANGES
#define KEPT_BY(k) (mark[k] && rs[k]!=GONE_K)
inline checkN2() {
	assert(KEPT_BY(0) || !(IN_USE(0) || IN(fly,0))); /* N2 */
#if KS>1
	assert(KEPT_BY(1) || !(IN_USE(1) || IN(fly,1))); /* N2 */
#endif
}
#else
inline checkN2() { skip }
#endif

/* -------------------------------------------------------------------------------------- writes of the fence */

#ifndef NO_N_CAS
#define FITS(i) m[i].fits
#else
#define FITS(i) true
#endif
#if defined(CRASH) || defined(NO_N_SAME_AGAIN)
#define AIR_MOVES airFits = false
#else
#define AIR_MOVES skip
#endif
inline outdates(j) { m[j].newest = false; m[j].fits = false }
inline moved() {
	outdates(0); outdates(1); AIR_MOVES;
#if MANAGERS>2
	outdates(2)
#endif
}

#ifdef RANGES
#define LEARN_OPEN(i) m[i].baseOpen = open
#else
#define LEARN_OPEN(i) skip
#endif
#ifdef WIPE
#define LEARN_ADOPT(i) m[i].adopts = adopting; m[i].old = false
#else
#define LEARN_ADOPT(i) skip
#endif
inline learn(i) { m[i].newest = true; m[i].base = fly; LEARN_OPEN(i); LEARN_ADOPT(i) }

#if defined(NO_N_LIST)
#define KEEPS_MEMORY true
#else
#define KEEPS_MEMORY false
#endif
inline forgetNodes(j) { n = 0; do :: n<NODES -> m[j].mem[n] = 0; n++ :: else -> break od; n = 0 }
inline forgetSends(i) {
	m[i].sends = 0; m[i].fits = false; m[i].says = 0; m[i].sameSeq = false;
#ifdef RANGES
	m[i].saysOpen = 0; m[i].shuts = 0;
#endif
#ifdef WIPE
	m[i].saysSure = false;
#endif
}
/* go: nodeipam.ClusterAllocator.recordCommitOutcome, nodeipam.nodeState.recordTermLost */
inline loseTerm(i) {
	m[i].turn = IDLE; m[i].newest = false; m[i].base = 0; m[i].sameTerm = false; forgetSends(i);
	if :: !KEEPS_MEMORY -> forgetNodes(i) :: else fi;
#ifdef RANGES
	m[i].baseOpen = 0; m[i].closing = 0; m[i].shut = 0; m[i].unused = 0; m[i].asBefore = 0;
#ifndef NO_N_READ_TERM
	m[i].read = 0;
#endif
#endif
#if defined(NO_N_INHERIT) || defined(REFUSE)
	m[i].own = 0; m[i].tried = 0;
#endif
#ifdef WIPE
	m[i].adopts = false; m[i].sure = false; m[i].old = false;
#endif
}

/* The fence gets another holder. What the former one knows is of no use any more, but for what it may patch. */
#if defined(NO_N_OWN_ID) || defined(NO_N_CAS) || defined(NO_N_LIST)
#define OUTDATED(i) skip
#else
#define OUTDATED(i) forgetNodes(i)
#endif
/* Whose write carries the same resourceVersion says the same term, or seq. */
inline isTakenOver(j) {
	m[j].sameTerm = ((m[j].sends==FENCE || m[j].sends==CREATE) && m[j].fits);
	if :: m[j].turn==HOLD -> OUTDATED(j) :: else fi
}
inline isPassed(j) { m[j].sameSeq = (m[j].sends==COMMIT && m[j].fits && m[j].sameTerm) }
#define NEXT(i) (((i)+1)%MANAGERS)
#define LAST(i) (((i)+2)%MANAGERS)
inline otherHolder(i) {
	isTakenOver(NEXT(i));
#if MANAGERS>2
	isTakenOver(LAST(i));
#endif
	moved(); holder = i; m[i].sameTerm = true
}
inline write(i, map, opens, sures) {
	isPassed(NEXT(i));
#if MANAGERS>2
	isPassed(LAST(i));
#endif
	moved(); m[i].sameSeq = true; fly = map;
#ifdef RANGES
	open = opens;
#endif
#ifdef WIPE
	adopting = (adopting && !(sures));
#endif
	checkN2()
}
#ifdef RANGES
#define SAYS_OPEN(i) m[i].saysOpen
#else
#define SAYS_OPEN(i) 0
#endif
#ifdef WIPE
#define SAYS_SURE(i) m[i].saysSure
#else
#define SAYS_SURE(i) false
#endif
inline lands(i) {
	if
	:: m[i].sends==FENCE -> otherHolder(i)
#ifdef WIPE
	:: m[i].sends==CREATE -> otherHolder(i); exists = true; adopting = true; over = false; fly = 0; open = 0;
#ifdef NO_N_STAMP
		early = m[i].early; m[i].early = false
#endif
#endif
	:: m[i].sends==COMMIT -> write(i, m[i].says, SAYS_OPEN(i), SAYS_SURE(i))
	fi
}
/* It is known to have landed. go: nodeipam.ClusterAllocator.recordCommitOutcome, nodeipam.commitPlanner.recordCommitted */
inline confirmed(i) {
	if
	:: m[i].sends==COMMIT ->
#if defined(NO_N_INHERIT) || defined(REFUSE)
		m[i].own = (m[i].own | (m[i].says&(255-m[i].base)))&m[i].says;
#endif
		m[i].base = m[i].says;
#ifdef RANGES
		m[i].baseOpen = m[i].saysOpen; m[i].shut = m[i].shut | m[i].shuts;
#endif
#ifdef WIPE
		m[i].adopts = (m[i].adopts && !m[i].saysSure); m[i].old = false;
#endif
		m[i].newest = true
#ifndef NO_N_ORDER
	:: else -> m[i].turn = FENCED; learn(i)
#else
	:: else -> m[i].turn = HOLD; learn(i)
#endif
	fi;
#ifdef NO_N_INFLIGHT
	m[i].base = (m[i].sends==COMMIT -> m[i].base : 0);
#endif
	forgetSends(i)
}
#ifndef NO_N_OWN_ID
#define MINE(i) (holder==(i))
#else
#define MINE(i) (holder!=NOBODY)
#endif
#ifndef NO_N_TERM
#define TERM(i) m[i].sameTerm
#else
#define TERM(i) true
#endif
#ifndef NO_N_SEQ
#define SEQ(i) m[i].sameSeq
#else
#define SEQ(i) true
#endif
#define LANDED(i) (EXISTS && MINE(i) && TERM(i) && (m[i].sends!=COMMIT || SEQ(i)))
/* go: term.Write.Attempt */
#ifdef WIPE
#define MAY_LAND(i) (m[i].sends==CREATE -> !exists : m[i].fits)
#else
#define MAY_LAND(i) m[i].fits
#endif

/* ------------------------------------------------------------------------------------------------ planning */

#define SET(k) ((k)>=1 && (k)<=3)
#define PROOF(i,u) (m[i].mem[u]==GONE || SET(m[i].mem[u]))
/* go: nodeipam.nodeCIDRs.settleGrant */
#ifndef NO_N_SET_BY_ANY
#define KEPT(i,u) (PROOF(i,u) -> 0 : AT(m[i].base,u))
#else
#define KEPT(i,u) (m[i].mem[u]==GONE || m[i].mem[u]==AT(m[i].base,u) -> 0 : AT(m[i].base,u))
#endif
#if NODES>2
#define SETTLED(i) (PUT(0,KEPT(i,0))|PUT(1,KEPT(i,1))|PUT(2,KEPT(i,2)))
#define FREE(i,c) !(TAKEN(i,0,c) || TAKEN(i,1,c) || TAKEN(i,2,c))
#else
#define SETTLED(i) (PUT(0,KEPT(i,0))|PUT(1,KEPT(i,1)))
#define FREE(i,c) !(TAKEN(i,0,c) || TAKEN(i,1,c))
#endif
#define TAKEN(i,v,c) (CLASH(KEPT(i,v),c) || (SET(m[i].mem[v]) && CLASH(m[i].mem[v],c)))
#ifndef NO_N_ONE
#define ONE_GRANT(i,u) (AT(m[i].base,u)==0)
#else
#define ONE_GRANT(i,u) true
#endif
#ifndef NO_N_CAS
#define CAN(i) (m[i].turn==HOLD && m[i].sends==0 && m[i].newest)
#else
#define CAN(i) (m[i].turn==HOLD && m[i].sends==0)
#endif

#ifdef WIPE
#ifndef NO_N_QUARANTINE
#define MAY_GRANT(i) (!m[i].adopts || m[i].sure)
#else
#define MAY_GRANT(i) true
#endif
#ifndef NO_N_ADOPTS
#define MAY_END(i) (!m[i].adopts || m[i].sure)
#else
#define MAY_END(i) true
#endif
#else
#define MAY_GRANT(i) true
#define MAY_END(i) true
#endif

#ifdef RANGES
#ifndef NO_N_VERIFIED
#define VERIFIED(i,k) ((m[i].read&BIT(k))!=0)
#else
#define VERIFIED(i,k) (marked[k] && (m[i].closing&BIT(k))==0)
bool marked[KS];                /* a watch may show it marked and alive whatever it is now */
#endif
#ifndef NO_N_WHITE_LIST
#define OPEN(i,c) ((m[i].baseOpen&BIT(OF(c)))!=0 || VERIFIED(i,OF(c)))
#define TO_OPEN(c) BIT(OF(c))
#else
#define OPEN(i,c) (marked[OF(c)] && (m[i].closing&BIT(OF(c)))==0)
#define TO_OPEN(c) 0
bool marked[KS];
#endif
#else
#define OPEN(i,c) true
#endif

inline send(i, what, map) { m[i].sends = what; m[i].fits = (m[i].newest || what!=COMMIT); m[i].says = map;
	m[i].sameSeq = false }
#ifdef RANGES
#define OPENS(i,set) m[i].saysOpen = (m[i].baseOpen|(set))
#else
#define OPENS(i,set) skip
#endif
#ifdef WIPE
#define SURES(i) m[i].saysSure = m[i].sure
#else
#define SURES(i) skip
#endif
#ifdef RANGES
#define REOPENS(i,set) m[i].shut = m[i].shut & (255-(set)); m[i].unused = m[i].unused & (255-(set))
#else
#define TO_OPEN(c) 0
#define REOPENS(i,set) skip
#endif

/* go: nodeipam.ClusterAllocator.reconcileOnce, nodeipam.grantPlanner.planGrants, nodeipam.commitPlanner.prepareCommit, fence.Fence.CommitState */
#define GRANT(i,u,c) \
	:: d_step { CAN(i) && m[i].mem[u]==SEEN && ONE_GRANT(i,u) && FREE(i,c) && OPEN(i,c) && MAY_GRANT(i) -> \
		printf("manager %d: sends the grant of %d to Node %d\n",i,c,u); \
		send(i, COMMIT, OFF(SETTLED(i),u)|PUT(u,c)); OPENS(i,TO_OPEN(c)); REOPENS(i,TO_OPEN(c)); SURES(i); AFRESH(i,u) }

/* The patch of a Node: whoever knows of a committed grant sends it, again and again.
 * go: nodeipam.nodeWrites.collectDueGrants, nodeipam.nodeClient.patchNode */
#ifdef WIPE
#define YOUNG(i) !m[i].old
#else
#define YOUNG(i) true
#endif
#if defined(NO_N_INHERIT)
#define GRANTED(i,u) (AT(m[i].base,u)==AT(m[i].own,u) -> AT(m[i].own,u) : 0)
#elif !defined(NO_N_CONFIRM)
#define GRANTED(i,u) AT(m[i].base,u)
#else
#define GRANTED(i,u) (AT(m[i].base,u)|(m[i].sends==COMMIT -> AT(m[i].says,u) : 0))
#endif
#ifdef REFUSE
#define TRIED(i,u) m[i].tried = m[i].tried|BIT(u)
#define AFRESH(i,u) m[i].tried = m[i].tried&(255-BIT(u))
/* What is to leave the record is not patched any more. */
#ifndef NO_N_LEAVES
#define STAYS(i,u) (m[i].sends!=COMMIT || AT(m[i].says,u)!=0)
#else
#define STAYS(i,u) true
#endif
#else
#define STAYS(i,u) true
#define TRIED(i,u) skip
#define AFRESH(i,u) skip
#endif
#define PATCH(i,u) \
	:: d_step { m[i].turn==HOLD && GRANTED(i,u)!=0 && !PROOF(i,u) && YOUNG(i) && STAYS(i,u) && has[u]==0 && HERE(u) && \
		(late[u]&BIT(GRANTED(i,u)))==0 -> \
		printf("manager %d: patches Node %d with %d\n",i,u,GRANTED(i,u)); late[u] = late[u]|BIT(GRANTED(i,u)); TRIED(i,u) }

/* What the watch shows next. A Node is shown without CIDRs first.
 * go: nodeipam.nodeState.observeNode, nodeipam.nodeState.forgetNode */
#ifndef NO_N_LIST
#define WATCHES(i) (m[i].turn==HOLD)
#else
#define WATCHES(i) true
#endif
#ifndef NO_N_UID_GONE
#define PROVEN(u) (st[u]==ENDED)
#else
#define PROVEN(u) (st[u]==ENDED || st[u]==DYING)
#endif
#define WATCH(i,u) \
	:: d_step { WATCHES(i) && m[i].mem[u]==0 && HERE(u) && WORTH(i) -> m[i].mem[u] = SEEN } \
	:: d_step { WATCHES(i) && m[i].mem[u]==SEEN && has[u]!=0 && WORTH(i) -> \
		printf("manager %d: is shown that Node %d has %d\n",i,u,has[u]); \
		m[i].mem[u] = has[u] } \
	:: d_step { WATCHES(i) && (m[i].mem[u]!=0 || ABSENT(i,u)) && m[i].mem[u]!=GONE && PROVEN(u) && WORTH(i) -> \
		printf("manager %d: is shown that Node %d is gone\n",i,u); m[i].mem[u] = GONE }
/* What a manager is shown after its turn is over changes nothing. */
#if defined(NO_N_OWN_ID) || defined(NO_N_CAS) || defined(NO_N_LIST)
#define WORTH(i) true
#else
#define WORTH(i) (holder==(i))
#endif
#ifdef NO_N_MONOTONE
#define STALE(i,u) \
	:: d_step { CAN(i) && SET(m[i].mem[u]) -> printf("manager %d: is shown Node %d as it was without CIDRs\n",i,u); \
		m[i].mem[u] = SEEN }
#else
#define STALE(i,u)
#endif
#ifdef NO_N_PROOF
#define DROP(i,u) \
	:: d_step { CAN(i) && AT(m[i].base,u)!=0 -> printf("manager %d: sends that the grant of Node %d is void\n",i,u); \
		send(i, COMMIT, OFF(SETTLED(i),u)); OPENS(i,0); SURES(i) }
#elif defined(REFUSE)
/* The API server has refused each patch for good. That is proof for what this manager has granted in this term.
 * go: nodeipam.nodeWrites.recordWrite */
#ifndef NO_N_OWN_GRANT
#define OWN_GRANT(i,u) (AT(m[i].own,u)!=0)
#else
#define OWN_GRANT(i,u) true
#endif
#ifndef NO_N_DOUBT
#define DOUBT(i,u) ((m[i].tried&BIT(u))!=0)
#else
#define DOUBT(i,u) false
#endif
#define DROP(i,u) \
	:: d_step { CAN(i) && AT(m[i].base,u)!=0 && !PROOF(i,u) && OWN_GRANT(i,u) && !DOUBT(i,u) -> \
		printf("manager %d: sends that the grant of Node %d was refused\n",i,u); \
		send(i, COMMIT, OFF(SETTLED(i),u)); OPENS(i,0); SURES(i) }
#else
#define DROP(i,u)
#endif
#ifdef NO_N_ANSWER
/* The answer to a patch settles the grant, and the memory is not told. */
#define TOLD(i,u) \
	:: d_step { CAN(i) && AT(m[i].base,u)!=0 && has[u]!=0 -> \
		printf("manager %d: sends that the grant of Node %d is settled\n",i,u); \
		send(i, COMMIT, OFF(SETTLED(i),u)); OPENS(i,0); SURES(i) }
#else
#define TOLD(i,u)
#endif

/* A grant of a UID that no list shows. */
#ifndef NO_N_ABSENT
#define ABSENT(i,u) (AT(m[i].base,u)!=0)
#else
#define ABSENT(i,u) false
#endif
inline list(i) {
	n = 0;
	do
	:: n<NODES -> m[i].mem[n] = (HERE(n) -> (has[n]!=0 -> has[n] : SEEN) : (st[n]==ENDED &&
		ABSENT(i,n) -> GONE : 0)); n++
	:: else -> break
	od;
	n = 0
}

/* ------------------------------------------------------------------------------------------- work and rest */

#if CIDRS>2
#define ROOM (ROOM_IN(1) || ROOM_IN(2) || ROOM_IN(3))
#elif CIDRS>1
#define ROOM (ROOM_IN(1) || ROOM_IN(2))
#else
#define ROOM ROOM_IN(1)
#endif
#define UNUSED(u,c) !((HERE(u) && OVER(has[u],c)) || OVER(AT(fly,u),c))
#ifdef RANGES
#define OFFERED(c) !UNWANTED(OF(c))
#define CLOSES(k) (UNWANTED(k) && mark[k] && !IN_USE(k))
#if KS>1
#define TO_CLOSE (CLOSES(0) || CLOSES(1))
#else
#define TO_CLOSE CLOSES(0)
#endif
#else
#define OFFERED(c) true
#define TO_CLOSE false
#endif
#define WAITS(u) (HERE(u) && has[u]==0)
#if NODES>2
#define ROOM_IN(c) (OFFERED(c) && UNUSED(0,c) && UNUSED(1,c) && UNUSED(2,c))
#define WAITING (WAITS(0) || WAITS(1) || WAITS(2))
#else
#define ROOM_IN(c) (OFFERED(c) && UNUSED(0,c) && UNUSED(1,c))
#define WAITING (WAITS(0) || WAITS(1))
#endif
#define WORK ((WAITING && ROOM) || fly!=0 || TO_CLOSE)
#define SERVED (EXISTS && holder<MANAGERS && m[holder].turn!=IDLE && m[holder].sameTerm)
#ifdef STEALS
#define MAY_TAKE_OVER (!SERVED || steals>0)
#define STEAL steals = (SERVED -> steals-1 : steals)
#else
#define MAY_TAKE_OVER true
#define STEAL skip
#endif

#ifdef RANGES
/* ------------------------------------------------------------------------------------- the life of a range */

/* Whoever writes a ClusterCIDR gives it another resourceVersion: a removal on the former one is refused. */
inline outruns(j, k) { m[j].asBefore = m[j].asBefore&(255-BIT(k)); m[j].endsFit = m[j].endsFit&(255-BIT(k)) }
inline touched(q) {
	outruns(0,q); outruns(1,q);
#if MANAGERS>2
	outruns(2,q)
#endif
}
#if defined(NO_N_VERIFIED) || defined(NO_N_WHITE_LIST)
#define MARKED(k) marked[k] = true
#else
#define MARKED(k) skip
#endif
#ifndef NO_N_MARK
#define MUST_MARK(k) mark[k]
#else
#define MUST_MARK(k) true
#endif
#if defined(UNSELECT) && !defined(NO_N_TOUCH)
#define TOUCH(k) touched(k)
#else
#define TOUCH(k) skip
#endif
#if defined(NO_N_CLOSED)
#define SKIPS(i,k) true
#elif defined(NO_N_CLOSE_ALWAYS)
#define SKIPS(i,k) ((m[i].baseOpen&BIT(k))==0 && m[i].sends==0)
#else
#define SKIPS(i,k) false
#endif
#ifndef NO_N_ALIVE
#define MAY_READ(k) !UNWANTED(k)
#else
#define MAY_READ(k) (rs[k]!=GONE_K)
#endif
#ifndef NO_N_END_RV
#define END_FITS(i,k) HAS(m[i].endsFit,k)
#else
#define END_FITS(i,k) true
#endif
#ifndef NO_N_LIST_AFTER
#define SHUT(i,k) ((m[i].shut&BIT(k))!=0)
#define FORGETS(i,k) m[i].unused = m[i].unused & (255-BIT(k))
#else
#define SHUT(i,k) true
#define FORGETS(i,k) skip
#endif
#ifndef NO_N_SETTLED_FIRST
#define FIRST_NONE(i,k) !IN(m[i].base,k)
#define THEN_NONE(i,k) true
#else
#define FIRST_NONE(i,k) true
#define THEN_NONE(i,k) !IN(m[i].base,k)
#endif
#if defined(NO_N_USED)
#define LISTS_NONE(i,k) true
#elif defined(NO_N_LIST_CLOSE)
#define MEM(i,u,k) (SET(m[i].mem[u]) && FROM(m[i].mem[u],k))
#if NODES>2
#define LISTS_NONE(i,k) !(MEM(i,0,k) || MEM(i,1,k) || MEM(i,2,k))
#else
#define LISTS_NONE(i,k) !(MEM(i,0,k) || MEM(i,1,k))
#endif
#else
#define LISTS_NONE(i,k) !IN_USE(k)
#endif
#ifndef NO_N_RV_FIRST
#define CAN_END(i,k) HAS(m[i].asBefore,k)
#else
#define CAN_END(i,k) true
#endif
#define HAS(set,k) (((set)&BIT(k))!=0)

#ifdef NO_N_READ_TERM
#define READS(i) true
#else
#define READS(i) (m[i].turn==HOLD && m[i].newest)
#endif

#ifdef NO_N_TOUCH
#define WAITS_FOR(i,k) !HAS(m[i].ends,k)
#else
#define WAITS_FOR(i,k) true
#endif
#define LESS(set,k) ((set)&(255-BIT(k)))

/* The finalizer, or the entry, is put on by resourceVersion; or a live read shows it. Where a range may be closed and
 * opened again without being deleted, who opens it writes the entry anew.
 * go: nodeipam.ClusterAllocator.protectObjects, nodeipam.ClusterCIDRProtector.ProtectObject */
#define MARKS(i,k) \
	:: d_step { READS(i) && !UNWANTED(k) && !mark[k] -> printf("manager %d: marks the range %d\n",i,k); \
		mark[k] = true; touched(k); m[i].read = m[i].read|BIT(k); MARKED(k) } \
	:: d_step { READS(i) && MAY_READ(k) && MUST_MARK(k) && !HAS(m[i].read,k) && WAITS_FOR(i,k) -> \
		printf("manager %d: reads the range %d\n",i,k); \
		TOUCH(k); m[i].read = m[i].read|BIT(k) }
/* What the watch of ranges shows. go: nodeipam.ClusterAllocator.SetRangeObjects */
#define SEES(i,k) \
	:: d_step { m[i].turn==HOLD && UNWANTED(k) && !HAS(m[i].closing,k) -> \
		printf("manager %d: sees that the range %d closes\n",i,k); \
		m[i].closing = m[i].closing|BIT(k); m[i].read = LESS(m[i].read,k) } \
	:: d_step { m[i].turn==HOLD && !UNWANTED(k) && HAS(m[i].closing,k) -> \
		printf("manager %d: sees that the range %d is wanted again\n",i,k); \
		m[i].closing = LESS(m[i].closing,k) }
/* First the commit without it, always: it shows that no other manager has opened it since. go: nodeipam.commitPlanner.prepareCommit */
#define SHUTS(i,k) \
	:: d_step { CAN(i) && HAS(m[i].closing,k) && !(HAS(m[i].shut,k) && HAS(m[i].asBefore,k)) && mark[k] && \
		!SKIPS(i,k) -> \
		printf("manager %d: sends that the range %d is closed\n",i,k); \
		send(i, COMMIT, SETTLED(i)); m[i].saysOpen = LESS(m[i].baseOpen,k); SURES(i); m[i].shuts = BIT(k); \
		m[i].shut = LESS(m[i].shut,k); FORGETS(i,k); m[i].read = LESS(m[i].read,k); \
		m[i].asBefore = m[i].asBefore|BIT(k) } \
	:: d_step { m[i].turn==HOLD && SKIPS(i,k) && HAS(m[i].closing,k) && !HAS(m[i].shut,k) && mark[k] -> \
		m[i].shut = m[i].shut|BIT(k); m[i].asBefore = m[i].asBefore|BIT(k) }
/* Then the list, when no grant in flight has any of it. go: nodeipam.objectProtection.objectsToUnprotect, nodeipam.ClusterAllocator.unprotectClosed */
#define LISTS(i,k) \
	:: d_step { m[i].turn==HOLD && HAS(m[i].closing,k) && SHUT(i,k) && FIRST_NONE(i,k) && MAY_END(i) && \
		!HAS(m[i].unused,k) && LISTS_NONE(i,k) && mark[k] -> \
		printf("manager %d: lists that nothing uses the range %d\n",i,k); m[i].unused = m[i].unused|BIT(k) }
/* Then the removal, on the version that was there before the closing commit. go: nodeipam.ClusterCIDRProtector.UnprotectObject */
#define ENDS(i,k) \
	:: d_step { m[i].turn==HOLD && HAS(m[i].closing,k) && HAS(m[i].shut,k) && HAS(m[i].unused,k) && \
		THEN_NONE(i,k) && CAN_END(i,k) && mark[k] && \
			!HAS(m[i].ends,k) && MAY_END(i) -> \
		printf("manager %d: sends the removal of the mark of the range %d\n",i,k); \
		m[i].ends = m[i].ends|BIT(k); m[i].endsFit = m[i].endsFit|BIT(k); m[i].read = LESS(m[i].read,k) } \
	:: d_step { HAS(m[i].ends,k) && END_FITS(i,k) -> printf("the mark of the range %d: is removed\n",k); \
		mark[k] = false; m[i].ends = LESS(m[i].ends,k); touched(k); rs[k] = (rs[k]==DELETED -> GONE_K : rs[k]); \
		checkN2() } \
	:: d_step { HAS(m[i].ends,k) && !END_FITS(i,k) -> m[i].ends = LESS(m[i].ends,k) }
#endif

#ifdef WIPE
/* What says that there was an allocator before, whose requests may be on their way.
 * go: nodeipam.knownNodes.hasNodeCIDRs, nodeipam.ClusterCIDRProtector.HasProtectedObjects */
#if defined(NO_N_EMPTY)
#define EVIDENCE ANY_HAS
#elif defined(BY_NODES)
#define EVIDENCE ANY_NODE
#else
#define EVIDENCE (ANY_HAS || mark[0])
#endif
#endif

/* ----------------------------------------------------------------------------------------------- a manager */

#ifndef NO_N_ORDER
#define BEFORE IDLE
#else
#define BEFORE LISTED
#endif

proctype manager(byte i) {
end:	do
#ifdef NO_N_ORDER
	:: d_step { m[i].turn==IDLE && WORK && MAY_TAKE_OVER -> printf("manager %d: lists\n",i); list(i);
		m[i].turn = LISTED }
#endif
	/* Another holder: first the write, then the list. go: nodeipam.ClusterAllocator.takeOver, fence.Fence.TakeOver */
	:: d_step { m[i].turn==BEFORE && m[i].sends==0 && WORK && MAY_TAKE_OVER && EXISTS ->
		printf("manager %d: sends that it is the holder\n",i); STEAL; send(i, FENCE, 0); m[i].sameTerm = false }
#ifdef WIPE
	:: d_step { m[i].turn==BEFORE && m[i].sends==0 && WORK && MAY_TAKE_OVER && !exists ->
		printf("manager %d: sends a new ConfigMap, of which it is the holder\n",i); STEAL; send(i, CREATE, 0);
		m[i].sameTerm = false }
#endif
	/* go: nodeipam.ClusterAllocator.takeOver, nodeipam.nodeState.applyTakeover */
	:: d_step { m[i].turn==FENCED -> printf("manager %d: lists\n",i);
#ifndef NO_N_LIST
		list(i);
#endif
		m[i].turn = HOLD;
#ifdef WIPE
		m[i].sure = (m[i].adopts && (over || !EVIDENCE));
#endif
		if :: !KEEPS_MEMORY && holder!=i -> OUTDATED(i) :: else fi
	}
	/* What is under way arrives, and is answered or not. */
	:: d_step { m[i].sends!=0 && (m[i].sends==CREATE -> !EXISTS : FITS(i)) ->
		printf("manager %d: the write lands\n",i); lands(i); confirmed(i) }
#ifdef LOST
	:: d_step { m[i].sends!=0 && (m[i].sends==CREATE -> !EXISTS : FITS(i)) ->
		printf("manager %d: the write lands, without an answer\n",i); lands(i) }
#endif
	/* It was refused, or the answer is lost, and a live read decides. go: fence.Fence.ResolvePending, term.Write.Attempt */
#ifdef NO_N_READBACK
	:: d_step { m[i].sends==COMMIT -> printf("manager %d: takes the write as landed\n",i); confirmed(i);
		m[i].newest = false }
#endif
#ifdef NO_N_SAME_AGAIN
	/* It may land yet, and another one is planned. */
	:: d_step { m[i].sends==COMMIT && m[i].fits && air==0 -> printf("manager %d: gives the write up\n",i);
		air = COMMIT; airSays = m[i].says; airOpen = SAYS_OPEN(i); airSure = SAYS_SURE(i); airFits = true;
		airFrom = i; forgetSends(i) }
#endif
	:: d_step { m[i].sends!=0 && !MAY_LAND(i) && LANDED(i) ->
		printf("manager %d: reads that the write has landed\n",i); confirmed(i) }
	:: d_step { m[i].sends==COMMIT && !MAY_LAND(i) && !LANDED(i) && EXISTS && MINE(i) && TERM(i) ->
		printf("manager %d: reads that somebody has edited the fence\n",i); forgetSends(i); learn(i) }
	:: d_step { m[i].sends!=0 && !MAY_LAND(i) && !LANDED(i) && !(m[i].sends==COMMIT && EXISTS && MINE(i) && TERM(i)) ->
		printf("manager %d: reads that its turn is over\n",i); loseTerm(i) }
	/* The same without a commit: whoever reads the fence sees it. */
	:: d_step { m[i].turn>=FENCED && m[i].turn!=LISTED && m[i].sends==0 && !m[i].newest && EXISTS && MINE(i) &&
		TERM(i) -> learn(i) }
	:: d_step { m[i].turn>=FENCED && m[i].turn!=LISTED && m[i].sends==0 && !m[i].newest && !(EXISTS && MINE(i) &&
		TERM(i)) ->
		printf("manager %d: sees that its turn is over\n",i); loseTerm(i) }
	/* What is settled goes with the next commit. go: nodeipam.ClusterAllocator.reconcileOnce, nodeipam.commitPlanner.prepareCommit */
	:: d_step { CAN(i) && SETTLED(i)!=m[i].base -> printf("manager %d: sends what is settled\n",i);
		send(i, COMMIT, SETTLED(i)); OPENS(i,0); SURES(i) }
	GRANT(i,0,1)
	GRANT(i,1,1)
#if CIDRS>1
	GRANT(i,0,2)
	GRANT(i,1,2)
#endif
#if CIDRS>2
	GRANT(i,0,3)
	GRANT(i,1,3)
#endif
	PATCH(i,0)
	PATCH(i,1)
	WATCH(i,0)
	WATCH(i,1)
	STALE(i,0)
	STALE(i,1)
	DROP(i,0)
	DROP(i,1)
	TOLD(i,0)
	TOLD(i,1)
#if NODES>2
	GRANT(i,2,1)
#if CIDRS>1
	GRANT(i,2,2)
#endif
#if CIDRS>2
	GRANT(i,2,3)
#endif
	PATCH(i,2)
	WATCH(i,2)
	STALE(i,2)
	DROP(i,2)
	TOLD(i,2)
#endif
#ifdef RANGES
	MARKS(i,0)
	SEES(i,0)
	SHUTS(i,0)
	LISTS(i,0)
	ENDS(i,0)
#if KS>1
	MARKS(i,1)
	SEES(i,1)
	SHUTS(i,1)
	LISTS(i,1)
	ENDS(i,1)
#endif
#endif
#ifdef WIPE
	/* The 75 s are over, and what there is is listed. go: nodeipam.ClusterAllocator.takeOver */
	:: d_step { m[i].turn==HOLD && m[i].newest && m[i].adopts && over && !m[i].sure ->
		printf("manager %d: has waited\n",i);
#ifndef NO_N_RELIST
		list(i);
#endif
		m[i].sure = true }
#endif
	od
}

/* ----------------------------------------------------------------------------------------------- the world */

#ifndef NO_N_UID
#define VOID(u) late[u] = 0
#else
#define VOID(u) skip
#endif
inline arrives(u, c) {
	late[u] = late[u]&(255-BIT(c));
	if
	:: HERE(u) && has[u]==0 -> has[u] = c; late[u] = 0; checkN1(); checkN2()
#if defined(NO_N_UID) && NODES>2
	:: u==0 && st[0]==ENDED && HERE(2) && has[2]==0 -> has[2] = c; checkN1(); checkN2()
#endif
	:: else
	fi
}
#define LANDS(u,c) \
	:: d_step { (late[u]&BIT(c))!=0 -> printf("node %d: the patch with %d arrives\n",u,c); arrives(u,c) }
#define LIFE(u) \
	:: d_step { st[u]==LIVE && deletes>0 -> printf("node %d: is being deleted\n",u); deletes--; st[u] = DYING } \
	:: d_step { st[u]==DYING -> printf("node %d: is gone\n",u); st[u] = ENDED; VOID(u) }
#ifdef FOREIGN
#define SETS(u,c) \
	:: d_step { foreigns>0 && HERE(u) && has[u]==0 -> printf("user: sets the CIDR of Node %d to %d\n",u,c); \
		foreigns--; has[u] = c; foreign[u] = true; late[u] = 0 }
#else
#define SETS(u,c)
#endif
#ifdef WIPE
#define LOSES(u) \
	:: d_step { late[u]!=0 -> late[u] = 0 }
#else
#define LOSES(u)
#endif

#ifdef WIPE
#ifndef NO_N_AGE
#define AGES(i) m[i].old = (m[i].turn!=IDLE && !(holder==(i) && m[i].sameTerm))
#else
#define AGES(i) skip
#endif
#endif
#if defined(CRASH) || defined(NO_N_SAME_AGAIN)
#ifdef WIPE
#define AIR_FITS (air==CREATE -> !exists : airFits)
#else
#define AIR_FITS airFits
#endif
inline airLands() {
	if
	:: air==COMMIT -> isPassed(0); isPassed(1); moved(); fly = airSays;
#ifdef RANGES
		open = airOpen;
#endif
#ifdef WIPE
		adopting = (adopting && !airSure);
#endif
		checkN2()
	:: else -> isTakenOver(0); isTakenOver(1); moved(); holder = DEAD;
#ifdef WIPE
		if
		:: air==CREATE -> exists = true; adopting = true; over = false; fly = 0; open = 0
		:: else
		fi
#endif
	fi
}
inline airClear() { air = 0; airFits = false; airSays = 0; airOpen = 0; airSure = false; airFrom = 0 }
#endif
#ifdef CRASH
/* Another process takes the place of the manager; one request of before is on its way. */
#define CRASHES(i) \
	:: d_step { crashes>0 && (m[i].turn!=IDLE || m[i].sends!=0) && air==0 -> \
		printf("manager %d: dies, and starts again\n",i); crashes--; \
		air = m[i].sends; airSays = m[i].says; airOpen = SAYS_OPEN(i); airSure = SAYS_SURE(i); airFits = m[i].fits; \
		airFrom = i; holder = (holder==(i) -> DEAD : holder); \
		loseTerm(i) }
#endif

active proctype world() {
end:	do
	:: d_step { st[0]==NONE -> printf("node 0: joins\n"); st[0] = LIVE }
	:: d_step { st[1]==NONE && st[0]!=NONE -> printf("node 1: joins\n"); st[1] = LIVE }
#if NODES>2
	:: d_step { st[2]==NONE && st[0]==ENDED && st[1]!=NONE -> printf("node 2: joins, with the name of Node 0\n");
		st[2] = LIVE }
	LIFE(2)
	LANDS(2,1)
	LANDS(2,2)
	LANDS(2,3)
	LOSES(2)
#endif
	LIFE(0)
	LIFE(1)
	LANDS(0,1)
	LANDS(0,2)
	LANDS(0,3)
	LANDS(1,1)
	LANDS(1,2)
	LANDS(1,3)
	LOSES(0)
	LOSES(1)
	SETS(0,1)
	SETS(1,1)
#ifdef RANGES
	:: d_step { drops>0 && rs[0]==LIVING -> printf("user: deletes the range 0\n"); drops--;
		rs[0] = (mark[0] -> DELETED : GONE_K); touched(0); checkN2() }
#if KS>1
	:: d_step { drops>0 && rs[1]==LIVING -> printf("user: deletes the range 1\n"); drops--;
		rs[1] = (mark[1] -> DELETED : GONE_K); touched(1); checkN2() }
#endif
#ifdef UNSELECT
	:: d_step { turns>0 && rs[0]==LIVING -> away = !away; turns--;
		printf("user: the range 0 is %d for this cluster\n",!away) }
#endif
#endif
#ifdef EDIT
	:: d_step { edits>0 && EXISTS -> printf("user: edits the ConfigMap\n"); edits--; moved() }
#endif
#ifdef WIPE
	:: d_step { wipes>0 && exists -> printf("the ConfigMap: is lost\n");
#ifdef NO_N_STAMP
		m[0].early = (m[0].sends==CREATE); m[1].early = (m[1].sends==CREATE);
#endif
		wipes--; exists = false; adopting = false; over = false; holder = NOBODY; fly = 0; open = 0; moved();
#if MANAGERS>2
		m[2].sameTerm = false; forgetNodes(2);
#endif
		m[0].sameTerm = false; m[1].sameTerm = false; forgetNodes(0); forgetNodes(1) }
	/* Longer than any request of before is under way, and than any turn is trusted. */
	:: d_step { exists && adopting && !over && WAITED -> printf("75 s: are over\n"); over = true;
#if MANAGERS>2
		AGES(2);
#endif
		AGES(0); AGES(1) }
#endif
#ifdef CRASH
	CRASHES(0)
	CRASHES(1)
#endif
#if defined(CRASH) || defined(NO_N_SAME_AGAIN)
	:: d_step { air!=0 && AIR_FITS -> printf("in the air: a write of manager %d lands\n",airFrom); airLands();
		airClear() }
	:: d_step { air!=0 && !AIR_FITS -> airClear() }
#endif
	od
}

/* N3: when nothing moves any more, no grant is in flight, no Node waits while there is room, and no range waits for its
 * end. */
active proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	assert(!(WORK)) /* N3 */
}

init {
	atomic {
		run manager(0); run manager(1);
#if MANAGERS>2
		run manager(2)
#endif
	}
}
