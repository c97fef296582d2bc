/* A namespace that clusterctl moves to another management cluster, is killed at, and moves on with (R9, R10); see README.md.
 *
 * The source and the target have a manager each, and the pool has room for every claim. Two claims are there when the move begins. A third is made on
 * the source while no move runs, and a fourth on the target at any time. A claim stands for its IPAddress too. A step is one request to an API server.
 *
 * BLOCKS: the claims are IPAllocations and IPLeases, which nothing owns: clusterctl creates and deletes them in any order with their pool and their
 * Cluster. An IPAllocation is deleted for want of its Cluster, or of the pool that it is for. PODS: Nodes of the Cluster use the first two, which a
 * ConfigMap in the workload cluster lists as open; whichever management cluster has the Cluster unpaused serves them.
 *
 * "go:" names the function that a step stands for. NO_x takes rule x away; the scenarios are in check.sh. */

#ifndef KILLS
#define KILLS 2                 /* times that clusterctl is killed */
#endif

#define CLAIMS 4
#define ON_SOURCE 3             /* the claim that is made on the source */
#define ON_TARGET 4             /* the claim that is made on the target */
#define BIT(a) ((a)!=0 -> 1<<(a) : 0)

/* Of a Cluster. */
#define NONE 0
#define PAUSED 1
#define RUNS 2

/* The API servers. Of each claim: whether it is there, and the address that it has on record. */
bool hereS[CLAIMS+1], hereT[CLAIMS+1];
byte hasS[CLAIMS+1], hasT[CLAIMS+1];
bool poolS = true, poolT;
byte clusterS = RUNS, clusterT;
bool fromElsewhere;             /* the pool of the target names the source as the management cluster that serves it */
byte heldS;                     /* status.held on the source: addresses of claims that clusterctl has deleted */
bool away[CLAIMS+1];            /* BLOCKS: it is on record that the Cluster was paused when it was last seen */
bool askedS, askedT;            /* PODS: the first block was asked for again, with its addresses in its spec */
bool mirrored;                  /* MIRROR: the pool that is mirrored is on the source */
bool anew;                      /* the mirror says that it was made anew */

/* The manager of the target. */
byte knownT;                    /* addresses that it knows to be in use */
bool listed;                    /* it listed them since it holds the pool, and since the proof */

/* clusterctl. */
bool runs;
bool takes[CLAIMS+1], takesPool, takesCluster;  /* what it found when it began */
byte kills = KILLS;

/* M1: an address is granted only where no other claim has it on record, on either side, and no Node uses it. */
inline checkGrant(c, a) {
#ifdef PODS
	assert(a!=1 && a!=2); /* M1 */
#endif
	for (i : 1 .. CLAIMS) { assert(i==c || ((!hereS[i] || hasS[i]!=a) && (!hereT[i] || hasT[i]!=a))) /* M1 */ }
	i = 0
}

/* ------------------------------------------------------------------------------------------------------- clusterctl */

/* Owners come before what they own: the pool and the Cluster in any order, then the claims; it deletes in the reverse order, and unpauses last. What
 * nothing owns is in one group with the pool and the Cluster. */
#define LEFT_TO_CREATE(c) (takes[c] && hereS[c] && !copied[c])
#define CREATED (!LEFT_TO_CREATE(1) && !LEFT_TO_CREATE(2) && !LEFT_TO_CREATE(3))
#define LEFT_TO_DELETE(c) (takes[c] && hereS[c])
#define DELETED (!LEFT_TO_DELETE(1) && !LEFT_TO_DELETE(2) && !LEFT_TO_DELETE(3))
#define OWNERS (copied[0] && copiedCluster)
#ifndef BLOCKS
#define MAY_CREATE (OWNERS && !CREATED)
#define OWNED_GONE DELETED
#else
#define MAY_CREATE (!CREATED)
#define OWNED_GONE true
#endif
#define MAY_DELETE (OWNERS && CREATED && !DELETED)
#define MAY_DELETE_OWNERS (OWNERS && CREATED && OWNED_GONE)

proctype clusterctl() {
	bool copied[CLAIMS+1]; /* 0: the pool */
	bool copiedCluster;
	byte i;
end:	do
	/* It refuses to move Clusters that are paused. */
	:: d_step { !runs && clusterS!=PAUSED && (poolS || clusterS!=NONE || hereS[1] || hereS[2] || hereS[3]) ->
		printf("user: runs clusterctl move\n");
		runs = true; takesPool = poolS || mirrored; takesCluster = clusterS!=NONE; copied[0] = !takesPool; copiedCluster = !takesCluster;
		for (i : 1 .. ON_SOURCE) { takes[i] = hereS[i]; copied[i] = false }
		/* What the manager sees of the Cluster is that it is paused, before it is gone. go: blocks.ownerSeenCondition, grants.Owners.RecordOwnerSeen */
#ifndef NO_AWAY
		away[1] = away[1] || takesCluster; away[2] = away[2] || takesCluster; away[3] = away[3] || takesCluster;
#endif
		i = 0; clusterS = (takesCluster -> PAUSED : NONE) }
	:: d_step { runs && !copied[0] -> printf("clusterctl: creates the pool, or writes over it\n");
		copied[0] = true; poolT = true; fromElsewhere = true; listed = false }
	:: d_step { runs && !copiedCluster -> printf("clusterctl: creates the Cluster, paused\n"); copiedCluster = true; clusterT = PAUSED }
	:: atomic { runs && (MAY_CREATE || MAY_DELETE) ->
		if
		:: LEFT_TO_CREATE(1) -> i = 1
		:: LEFT_TO_CREATE(2) -> i = 2
		:: LEFT_TO_CREATE(3) -> i = 3
		:: MAY_DELETE && LEFT_TO_DELETE(1) -> i = 1
		:: MAY_DELETE && LEFT_TO_DELETE(2) -> i = 2
		:: MAY_DELETE && LEFT_TO_DELETE(3) -> i = 3
		fi;
		if
		:: LEFT_TO_CREATE(i) -> printf("clusterctl: creates claim %d, which has %d\n",i,hasS[i]);
#ifdef PODS
			assert(i!=1 || !hereT[1] || askedS==askedT); /* M4 */
			askedT = (i==1 -> askedS : askedT);
#endif
			assert(hasT[i]==0 || hasT[i]==hasS[i]); /* M2 */
			copied[i] = true; hereT[i] = true; hasT[i] = hasS[i]
		/* go: grants.HeldRanges.holdMovedClaimant, grants.HeldRanges.holdMovedRange */
		:: else -> printf("clusterctl: deletes claim %d\n",i);
			hereS[i] = false; heldS = heldS | (poolS && !anew -> BIT(hasS[i]) : 0); hasS[i] = 0
		fi;
		i = 0 }
	:: d_step { runs && MAY_DELETE_OWNERS && takesPool && poolS && !anew ->
		printf("clusterctl: deletes the pool\n"); poolS = false; heldS = 0 }
#ifdef MIRROR
	:: d_step { runs && MAY_DELETE_OWNERS && takesPool && mirrored && (!poolS || anew) ->
		printf("clusterctl: deletes the pool that is mirrored\n"); mirrored = false; poolS = false; anew = false }
#endif
	:: d_step { runs && MAY_DELETE_OWNERS && takesCluster && clusterS!=NONE -> printf("clusterctl: deletes the Cluster\n"); clusterS = NONE }
	:: d_step { runs && OWNERS && CREATED && DELETED && (!takesPool || (!poolS && !mirrored)) && clusterS==NONE ->
		printf("clusterctl: unpauses the Cluster, and ends\n"); runs = false; clusterT = (takesCluster -> RUNS : clusterT) }
	:: d_step { runs && kills>0 -> printf("user: kills clusterctl\n"); kills--; runs = false }
	od
}

proctype user() {
end:	do
	:: d_step { !runs && clusterS==PAUSED -> printf("user: unpauses the Cluster of the source, to move on\n"); clusterS = RUNS;
		away[1] = false; away[2] = false; away[3] = false }
	:: d_step { !runs && clusterT==PAUSED && clusterS==NONE && !poolS && !mirrored && !hereS[1] && !hereS[2] && !hereS[3] ->
		printf("user: unpauses the Cluster of the target, as nothing is left on the source\n"); clusterT = RUNS }
	/* What is made there while clusterctl runs it does not take along: see README.md. */
	:: d_step { !runs && !hereS[ON_SOURCE] && !hereT[ON_SOURCE] && clusterT!=RUNS && (poolS || mirrored) ->
		printf("user: makes claim 3 on the source\n"); hereS[ON_SOURCE] = true; away[ON_SOURCE] = (clusterS!=RUNS) }
	:: d_step { !hereT[ON_TARGET] -> printf("user: makes claim 4 on the target\n"); hereT[ON_TARGET] = true }
	od
}

/* -------------------------------------------------------------------------------------------------------- the source */

#ifndef NO_HELD
#define SOURCE_OPEN (heldS==0 && !anew)
#else
#define SOURCE_OPEN (!anew)
#endif
#ifndef NO_SITE_PAUSED
#define SITE(c) ((c)==RUNS)
#else
#define SITE(c) ((c)!=NONE)
#endif
#ifndef NO_NOT_MOVED
#define NOT_MOVED ((heldS & BIT(1))==0 && !anew)
#else
#define NOT_MOVED true
#endif
#ifndef NO_POOL_THERE
#define POOL_THERE(p) (p)
#else
#define POOL_THERE(p) true
#endif
#define FREE_S(a) (hasS[1]!=(a) && hasS[2]!=(a) && hasS[3]!=(a))

proctype source() {
	byte i;
end:	do
	/* go: grants.Planner.PlanGrants, grants.StatusBuilder.ClosedReason */
	:: atomic { poolS && SOURCE_OPEN && !runs && hereS[ON_SOURCE] && hasS[ON_SOURCE]==0 ->
		if
		:: FREE_S(1) -> i = 1
		:: FREE_S(2) -> i = 2
		:: FREE_S(3) -> i = 3
		:: FREE_S(4) -> i = 4
		fi;
		printf("source: grants %d to claim 3\n",i); hasS[ON_SOURCE] = i; checkGrant(ON_SOURCE,hasS[ON_SOURCE]) }
#ifdef BLOCKS
	/* Its Cluster is gone, and was seen alive. go: allocator.ownerSweeper.sweepOrphans, allocator.ownerSweeper.checkOrphanedClaimant */
	:: d_step { clusterS==NONE && hereS[1] && !away[1] -> printf("source: deletes block 1 for want of its Cluster\n"); hereS[1] = false; hasS[1] = 0 }
	:: d_step { clusterS==NONE && hereS[2] && !away[2] -> printf("source: deletes block 2 for want of its Cluster\n"); hereS[2] = false; hasS[2] = 0 }
	:: d_step { clusterS==NONE && hereS[3] && !away[3] -> printf("source: deletes block 3 for want of its Cluster\n"); hereS[3] = false; hasS[3] = 0 }
#endif
#ifdef PODS
	/* A block that Nodes use is missing. go: nodeipam.blockReconciler.createBlock, nodeipam.IPAllocationClient.CreateBlock, nodeipam.IPAllocationClient.checkNotMoved, tenancy.DescribeMovedBlock */
	:: d_step { SITE(clusterS) && !hereS[1] && NOT_MOVED && POOL_THERE(poolS) -> printf("source: asks for block 1 again\n");
		hereS[1] = true; askedS = true; hasS[1] = (poolS && SOURCE_OPEN -> 1 : 0) }
#endif
#ifdef MIRROR
	/* go: incluster.InitMirrorOrigin, incluster.RecordMirror */
#ifndef NO_ANEW
	:: d_step { mirrored && !poolS -> printf("source: makes the mirror anew\n"); poolS = true; anew = true }
#else
	:: d_step { mirrored && !poolS -> printf("source: makes the mirror anew\n"); poolS = true }
#endif
#endif
	od
}

/* -------------------------------------------------------------------------------------------------------- the target */

#if defined(NO_ARRIVAL)
#define PROVEN true             /* time has passed */
#elif defined(NO_NAMED)
#define PROVEN (clusterT!=PAUSED) /* another Cluster of the namespace runs */
#else
#define PROVEN (clusterT==RUNS)
#endif

proctype target() {
	byte i;
end:	do
	/* go: allocator.arrivalChecker.checkArrival, allocator.poolMetadata.recordArrival */
	:: d_step { poolT && fromElsewhere && PROVEN -> printf("target: knows that all is here\n"); fromElsewhere = false;
#ifndef NO_LIST_AFTER
		listed = false
#else
		listed = true
#endif
		}
	/* go: allocator.statusWriter.takeOverPool */
	:: d_step { poolT && !listed -> printf("target: lists what is in use\n");
		listed = true; knownT = BIT(hasT[1]) | BIT(hasT[2]) | BIT(hasT[3]) | BIT(hasT[4]) }
	/* go: grants.Planner.PlanGrants, grants.Quarantine.IsQuarantined */
	:: atomic { poolT && !fromElsewhere && listed && hereT[ON_TARGET] && hasT[ON_TARGET]==0 ->
		if
		:: (knownT & BIT(1))==0 -> i = 1
		:: (knownT & BIT(2))==0 -> i = 2
		:: (knownT & BIT(3))==0 -> i = 3
		:: (knownT & BIT(4))==0 -> i = 4
		fi;
		printf("target: grants %d to claim 4\n",i); hasT[ON_TARGET] = i; knownT = knownT | BIT(i); checkGrant(ON_TARGET,hasT[ON_TARGET]) }
#ifdef PODS
	/* go: nodeipam.blockReconciler.createBlock */
	:: d_step { SITE(clusterT) && !hereT[1] && POOL_THERE(poolT) -> printf("target: asks for block 1 again\n");
		hereT[1] = true; askedT = true; hasT[1] = (!fromElsewhere && listed && (knownT & BIT(1))==0 -> 1 : 0) }
#endif
	/* A claim that came along without an address. go: grants.Planner.PlanGrants */
	:: atomic { poolT && !fromElsewhere && listed && hereT[ON_SOURCE] && hasT[ON_SOURCE]==0 ->
		if
		:: (knownT & BIT(1))==0 -> i = 1
		:: (knownT & BIT(2))==0 -> i = 2
		:: (knownT & BIT(3))==0 -> i = 3
		:: (knownT & BIT(4))==0 -> i = 4
		fi;
		printf("target: grants %d to claim 3\n",i); hasT[ON_SOURCE] = i; knownT = knownT | BIT(i); checkGrant(ON_SOURCE,hasT[ON_SOURCE]) }
	od
}

/* M3: when nothing moves any more all is on the target, and every claim has an address. */
proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	d_step {
		assert(!runs && !poolS && clusterS==NONE && clusterT==RUNS && !fromElsewhere); /* M3 */
		assert(hasT[1]==1 && hasT[2]==2 && hasT[ON_TARGET]!=0 && (!hereT[ON_SOURCE] || hasT[ON_SOURCE]!=0)) /* M3 */
	}
}

init {
	atomic {
		hereS[1] = true; hasS[1] = 1; hereS[2] = true; hasS[2] = 2;
#ifdef MIRROR
		mirrored = true;
#endif
		run clusterctl(); run user(); run source(); run target(); run rest()
	}
}
