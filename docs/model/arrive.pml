/* What arrives in a management cluster, one by one (R8, R10, R13); see README.md.
 *
 * Without BARE clusterctl brings a pool, one that is carved from it with its block, and their Cluster, in any order, and then a claim of the carved pool,
 * whose address is in the block. It is killed, and writes over what is there. Others ask both pools meanwhile, and a user may delete the block, or make one
 * with a record of another's address. A block has one address, of two. BARE: a tool that strips finalizers restores a pool, its Cluster, a claim with its
 * IPAddress, and an IPAllocation, which has nothing but its record. A user makes another claim, and an IPAllocation with the record of the first one.
 *
 * "go:" names the function that a step stands for. NO_x takes rule x away; the scenarios are in check.sh. */

#ifndef KILLS
#define KILLS 2                 /* times that the mover is killed */
#endif

#define BIT(a) ((a)!=0 -> 1<<(a) : 0)
#define NONE 0
#define PAUSED 1
#define RUNS 2

byte cluster;                   /* the Cluster that was with the pools */
byte kills = KILLS;

#ifndef BARE
/* ----------------------------------------------------------------------------------------------------- a carved pool */

#define NAMES 2                 /* names of blocks: what is asked for has the first that is free */

bool hereP, hereC;              /* the pool, and the one that is carved from it */
bool fromP, fromC;              /* it names another management cluster */
bool hereB[NAMES+1], goesB[NAMES+1];    /* an IPAllocation, and whether it is being deleted */
byte recB[NAMES+1];             /* its record, */
bool givenB[NAMES+1];           /* and whether its status, which the parent's holder writes, says the same */
byte open[NAMES+1];             /* status.blocks of the carved pool */
bool hereA;                     /* the claim that is moved: it has the address 1 */
bool hereN, hereX;              /* claims that are made here, of the carved pool and of its parent, */
byte hasN, hasX;                /* and what they have */
bool deleted, forged;
bool asked1;                    /* the block 1 was asked for here: its spec may be another than that of the one that is to come */

/* What the manager knows of either pool. */
byte knownP, knownC;
bool listedP, listedC;

/* M1: what the moved claim has is given to no other, be it here by then or not; nor are others given one address. */
inline checkP(c, a) { assert(a!=1 && hasX!=a && (c==1 || recB[1]!=a) && (c==2 || recB[2]!=a)) /* M1 */ }
inline checkC(a) { assert(a!=1 && hasX!=a) /* M1 */ }

proctype mover() {
	bool runs, p, c, b, k, a;
end:	do
	:: d_step { !runs && cluster!=RUNS -> printf("user: runs clusterctl move\n"); runs = true; p = false; c = false; b = false; k = false; a = false }
	:: d_step { runs && !p -> printf("clusterctl: creates the pool, or writes over it\n"); p = true; hereP = true; fromP = true; listedP = false }
	:: d_step { runs && !c -> printf("clusterctl: creates the carved pool, or writes over it\n"); c = true; hereC = true; fromC = true; listedC = false }
	:: d_step { runs && !b -> printf("clusterctl: creates the block 1, or writes over it\n"); b = true;
		assert(recB[1]==0 || recB[1]==1); /* M2 */
		assert(!hereB[1] || !asked1); /* M4 */
		hereB[1] = true; recB[1] = 1 }
	:: d_step { runs && !k -> printf("clusterctl: creates the Cluster, paused\n"); k = true; cluster = PAUSED }
	:: d_step { runs && p && c && b && k && !a -> printf("clusterctl: creates the claim, which has 1\n"); a = true; hereA = true }
	:: d_step { runs && a -> printf("clusterctl: unpauses the Cluster, and ends\n"); runs = false; cluster = RUNS }
	:: d_step { runs && kills>0 -> printf("user: kills clusterctl\n"); kills--; runs = false }
	od
}

proctype user() {
end:	do
	:: d_step { !hereN -> printf("user: makes a claim of the carved pool\n"); hereN = true }
	:: d_step { !hereX -> printf("user: makes a claim of the pool\n"); hereX = true }
	:: d_step { !deleted && hereB[1] -> printf("user: deletes the block 1\n"); deleted = true; goesB[1] = true }
	:: d_step { !forged && hereC && !hereB[2] && hasX==2 -> printf("user: makes the block 2, with a record of 2\n"); forged = true; hereB[2] = true; recB[2] = 2 }
	od
}

#ifndef NO_P_ARRIVAL
#define PROVEN_P (cluster==RUNS)
#else
#define PROVEN_P true
#endif
#ifndef NO_C_ARRIVAL
#define PROVEN_C (cluster==RUNS)
#else
#define PROVEN_C true
#endif
#ifndef NO_P_LIST
#define LIST_P listedP = false
#else
#define LIST_P skip
#endif
#ifndef NO_C_LIST
#define LIST_C listedC = false
#else
#define LIST_C skip
#endif
#ifndef NO_ASKS
#define MAY_ASK !fromC
#else
#define MAY_ASK true
#endif
#ifndef NO_KEEPS
#define MAY_CLOSE !fromC
#else
#define MAY_CLOSE true
#endif
#ifndef NO_GIVEN
#define GIVEN(k) givenB[k]
#else
#define GIVEN(k) true
#endif
#define FREE_P(a) ((knownP & BIT(a))==0)
#define GIVES_P (hereP && !fromP && listedP)

#define BLOCK_OF_PARENT(k) \
	:: d_step { hereP && hereC && hereB[k] && recB[k]!=0 && !givenB[k] && hasX!=recB[k] && (knownP & BIT(recB[k]) & (recB[3-k]!=0 -> BIT(recB[3-k]) : 0))==0 -> \
		printf("parent: says that the block %d has %d\n",k,recB[k]); givenB[k] = true; knownP = knownP | BIT(recB[k]) } \
	:: d_step { GIVES_P && hereC && hereB[k] && recB[k]==0 && !goesB[k] && FREE_P(1) -> printf("parent: grants 1 to the block %d\n",k); \
		checkP(k,1); recB[k] = 1; givenB[k] = true; knownP = knownP | BIT(1) } \
	:: d_step { GIVES_P && hereC && hereB[k] && recB[k]==0 && !goesB[k] && FREE_P(2) -> printf("parent: grants 2 to the block %d\n",k); \
		checkP(k,2); recB[k] = 2; givenB[k] = true; knownP = knownP | BIT(2) }

/* What has a record is served at any time. */
proctype parent() {
end:	do
	/* go: allocator.arrivalChecker.checkArrival, allocator.poolMetadata.recordArrival */
	:: d_step { hereP && fromP && PROVEN_P -> printf("parent: knows that all is here\n"); fromP = false; LIST_P }
	/* go: allocator.statusWriter.takeOverPool, grants.PoolState.RebuildLedger */
	:: d_step { hereP && !listedP -> printf("parent: lists what is in use\n"); listedP = true; knownP = BIT(recB[1]) | BIT(recB[2]) | BIT(hasX) }
	/* go: grants.Planner.PlanGrants, allocator.admissionPolicy.refusalForBlock, blocks.allocationKind.DesignatedRange, grants.Inventory.RecordedRangeFor */
	BLOCK_OF_PARENT(1)
	BLOCK_OF_PARENT(2)
	/* go: grants.Planner.PlanGrants, grants.Quarantine.IsQuarantined */
	:: d_step { GIVES_P && hereX && hasX==0 && FREE_P(1) -> printf("parent: grants 1 to its claim\n"); checkP(0,1); hasX = 1; knownP = knownP | BIT(1) }
	:: d_step { GIVES_P && hereX && hasX==0 && FREE_P(2) -> printf("parent: grants 2 to its claim\n"); checkP(0,2); hasX = 2; knownP = knownP | BIT(2) }
	od
}

#define USED(a) ((hereA && (a)==1) || ((a)!=0 && hasN==(a)))
#define BLOCK_OF_CHILD(k) \
	:: d_step { hereC && listedC && hereB[k] && recB[k]!=0 && GIVEN(k) && !goesB[k] && open[k]==0 -> printf("child: opens the block %d\n",k); open[k] = recB[k] } \
	:: d_step { hereC && !fromC && listedC && hereN && hasN==0 && open[k]!=0 && !goesB[k] && (knownC & BIT(open[k]))==0 -> \
		printf("child: grants %d to its claim\n",open[k]); checkC(open[k]); hasN = open[k]; knownC = knownC | BIT(hasN) } \
	:: d_step { hereC && listedC && MAY_CLOSE && goesB[k] && open[k]!=0 && !USED(open[k]) -> printf("child: closes the block %d\n",k); open[k] = 0 } \
	:: d_step { hereC && listedC && MAY_CLOSE && hereB[k] && goesB[k] && open[k]==0 && !USED(recB[k]) -> printf("child: releases the block %d\n",k); \
		hereB[k] = false; goesB[k] = false; givenB[k] = false; asked1 = (k!=1 && asked1); knownP = knownP & (255-BIT(recB[k])); recB[k] = 0 }

proctype child() {
end:	do
	/* go: allocator.arrivalChecker.checkArrival, allocator.poolMetadata.recordArrival */
	:: d_step { hereC && fromC && PROVEN_C -> printf("child: knows that all is here\n"); fromC = false; LIST_C }
	/* go: allocator.statusWriter.takeOverPool, grants.PoolState.RebuildLedger */
	:: d_step { hereC && !listedC -> printf("child: lists what is in use\n"); listedC = true; knownC = (hereA -> BIT(1) : 0) | BIT(hasN) }
	/* go: carve.Decision.settleBlock, blocks.allocationKind.BlockFromObject, allocator.blockRequests.verifyBlockReleasable */
	BLOCK_OF_CHILD(1)
	BLOCK_OF_CHILD(2)
	/* go: carve.DecideBlocks, grants.CarvedPool.nextBlockName, allocator.blockRequests.createBlock */
	:: d_step { hereC && listedC && MAY_ASK && hereN && hasN==0 && !hereB[1] && open[1]==0 -> printf("child: asks for the block 1\n"); hereB[1] = true; asked1 = true }
	:: d_step { hereC && listedC && MAY_ASK && hereN && hasN==0 && hereB[1] && !hereB[2] && open[2]==0 -> printf("child: asks for the block 2\n"); hereB[2] = true }
	od
}

/* M3: when nothing moves any more, all is here, and the pools are open. */
proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	assert(cluster==RUNS && !fromP && !fromC && hereA && hereB[1] && recB[1]==1) /* M3 */
}

init { atomic { run mover(); run user(); run parent(); run child(); run rest() } }

#else
/* ------------------------------------------------------------------------------------------- a restore without finalizers */

#define MOVED 1                 /* the claim with its IPAddress, which has the address 1 */
#define BLOCK 2                 /* the IPAllocation, which had 2 */
#define NEW   3                 /* a claim that is made here, */
#define COPY  4                 /* and an IPAllocation, with a record of 1 */
#define ASKED(c) ((c)==BLOCK -> 2 : ((c)==COPY -> 1 : 0))

bool hereP, closed, listed;     /* the pool; whether it waits for all to arrive, or its manager did not look at it yet */
bool bare;                      /* the tool has stripped the finalizer of the pool */
bool here[5];
byte has[5];
byte known;

/* M1 */
inline check(c, a) { assert(a!=1 && (c==1 || has[1]!=a) && (c==2 || has[2]!=a) && (c==3 || has[3]!=a) && (c==4 || has[4]!=a)) /* M1 */ }

proctype mover() {
	bool runs;
end:	do
	:: d_step { !runs && cluster==NONE -> printf("user: restores\n"); runs = true; cluster = PAUSED }
	:: d_step { !runs && cluster==PAUSED -> printf("user: restores the rest\n"); runs = true }
	:: d_step { runs && !hereP -> printf("restore: brings the pool\n"); hereP = true; closed = true }
	:: d_step { runs && !hereP -> printf("restore: brings the pool without its finalizer\n"); hereP = true; closed = true; bare = true }
	:: d_step { runs && !here[MOVED] -> printf("restore: brings the claim and its IPAddress\n"); here[MOVED] = true;
		assert(has[NEW]!=1 && has[BLOCK]!=1 && has[COPY]!=1); /* M1 */
		has[MOVED] = 1 }
	:: d_step { runs && !here[BLOCK] -> printf("restore: brings the IPAllocation\n"); here[BLOCK] = true }
	:: d_step { runs && hereP && here[MOVED] && here[BLOCK] -> printf("user: unpauses the Cluster, as all is here\n"); runs = false; cluster = RUNS }
	:: d_step { runs && kills>0 -> printf("user: ends the restore\n"); kills--; runs = false }
	od
}

proctype user() {
end:	do
	:: d_step { !here[NEW] -> printf("user: makes a claim\n"); here[NEW] = true }
	:: d_step { !here[COPY] -> printf("user: makes an IPAllocation with a record of 1\n"); here[COPY] = true;
#ifdef NO_COUNTS
		assert(has[MOVED]!=1); /* M1 */
		has[COPY] = 1
#endif
	}
	od
}

#ifndef NO_MARK
#define WAS_SERVED true
#else
#define WAS_SERVED (!bare || has[MOVED]!=0)
#endif
#ifndef NO_LATER
#define MAY_ASK (!closed && listed)
#else
#define MAY_ASK (listed || closed)
#endif
#ifndef NO_RANGE
#define ANY(c) (ASKED(c)==0 || (known & BIT(ASKED(c)))!=0)
#else
#define ANY(c) true
#endif
#define FREE(a) ((known & BIT(a))==0)

inline give(c, a) {
	printf("target: grants %d to %d\n",a,c); check(c,a);
	assert(c!=BLOCK || a==2 || (known & BIT(2))!=0); /* M2 */
	has[c] = a; known = known | BIT(a)
}
#define GRANTS(c) \
	:: d_step { hereP && MAY_ASK && here[c] && has[c]==0 && ASKED(c)!=0 && FREE(ASKED(c)) -> give(c,ASKED(c)) } \
	:: d_step { hereP && !closed && listed && here[c] && has[c]==0 && ANY(c) && FREE(1) -> give(c,1) } \
	:: d_step { hereP && !closed && listed && here[c] && has[c]==0 && ANY(c) && FREE(2) -> give(c,2) } \
	:: d_step { hereP && !closed && listed && here[c] && has[c]==0 && ANY(c) && FREE(3) -> give(c,3) } \
	:: d_step { hereP && !closed && listed && here[c] && has[c]==0 && ANY(c) && FREE(4) -> give(c,4) }

proctype target() {
end:	do
	/* go: allocator.statusWriter.fencePool, grants.Quarantine.RestoreQuarantine, allocator.missingArrivalProof */
	:: d_step { hereP && closed && (!WAS_SERVED || cluster==RUNS) -> printf("target: opens the pool\n"); closed = false; listed = false }
	/* go: allocator.statusWriter.takeOverPool */
	:: d_step { hereP && !closed && !listed -> printf("target: lists what is in use\n");
		listed = true; known = BIT(has[1]) | BIT(has[2]) | BIT(has[3]) | BIT(has[4]) }
	/* go: grants.Planner.PlanGrants, blocks.allocationKind.DesignatedRange, grants.Inventory.RequestedByRecord */
	GRANTS(BLOCK)
	GRANTS(NEW)
	GRANTS(COPY)
	od
}

/* M3 */
proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	assert(cluster==RUNS && !closed && has[MOVED]==1 && has[BLOCK]!=0 && (!here[NEW] || has[NEW]!=0) && (!here[COPY] || has[COPY]!=0)) /* M3 */
}

init { atomic { run mover(); run user(); run target(); run rest() } }
#endif
