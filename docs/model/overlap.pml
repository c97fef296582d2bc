/* Two pools of one network that come to share an address (R11); see README.md.
 *
 * The older pool is widened over the younger one and narrowed again; each has a manager of its own. Of the addresses there is one, that the younger
 * pool has all the time and the older one in its odd generations. A step is one access to the API server. What a watch shows of an object is what was
 * there at some moment since it showed it last; the watches of pools and of addresses know nothing of each other.
 *
 * "go:" names the function that a step stands for. NO_x takes rule x away; the scenarios are in check.sh. */

#ifndef EDITS
#define EDITS 3                 /* edits of the older pool: widened, narrowed, widened */
#endif
#ifndef CLAIMS
#define CLAIMS 2                /* claims that each pool may serve, one after the other */
#endif

#ifndef TAKEOVERS
#define TAKEOVERS 0             /* times that another manager, whose watches are behind, takes the younger pool over */
#endif

#define SHARES(g) ((g)%2==1)

/* The API server. Of each pool: a grant of the address in flight, and a claim that has it, by the number of the claim. */
byte gen;                       /* metadata.generation of the older pool */
byte yields;                    /* status.yields of the younger pool: a generation, 0 for none */
byte flyE, flyY;                /* status.allocator.inFlight */
byte hasE, hasY;                /* a record, or an IPAddress */
byte nextE = 1, nextY = 1;

/* The manager of the older pool. */
byte genE;                      /* generation of pool.base */
bool newestE = true;            /* pool.base has the resourceVersion of the pool */
byte sawYields, sawFlyY;        /* of the younger pool's status, as the watch has shown it */
byte sawY;                      /* what the younger pool has, as watch and lists have shown it */
byte goneY;                     /* the last claim of which the end was seen */
byte surveyed;                  /* the generation for which that was listed */

/* The manager of the younger pool. */
byte sawGen, sawFlyE, sawE, goneE;
bool listed;                    /* what the older pool has was listed after its last generation was seen */
byte takeovers = TAKEOVERS;
byte flyAt[EDITS+1];            /* what the older pool had in flight when a generation of it began */

/* I1: an address is committed to a claim only when the other pool has it neither in use nor in flight. */
inline checkE() { assert(flyY==0 && hasY==0) /* I1 */ }
inline checkY() { assert(flyE==0 && hasE==0) /* I1 */ }

/* ------------------------------------------------------------------------------------------ the older pool */

#if defined(NO_YIELD_SEEN)
#define YIELDED true
#elif defined(NO_GENERATION)
#define YIELDED (sawYields!=0)
#else
#define YIELDED (sawYields==genE)
#endif
#ifndef NO_SURVEY
#define SURVEYED (surveyed==genE)
#else
#define SURVEYED true
#endif
/* A grant has gone from the status, and nothing of it was seen: it became an object, or nothing. */
#ifndef NO_UNSEEN
#define UNSEEN(was,now,saw,gone) ((was)!=0 && (now)!=(was) && (saw)!=(was) && (gone)<(was))
#else
#define UNSEEN(was,now,saw,gone) false
#endif
#ifndef NO_SPEC_FENCE
#define FENCED newestE
#else
#define FENCED true
#endif

active proctype older() {
end:	do
	/* go: grants.PoolState.RefreshBasePool */
	:: d_step { !newestE -> printf("older: takes its spec, generation %d\n",gen); genE = gen; newestE = true }
	/* go: allocator.Allocator.ObservePool, grants.Observed.trackUnresolvedGrants */
	:: d_step { sawYields!=yields || sawFlyY!=flyY ->
		printf("older: is shown the younger one, which yields to %d, in flight %d\n",yields,flyY);
		surveyed = (UNSEEN(sawFlyY,flyY,sawY,goneY) -> 0 : surveyed); sawYields = yields; sawFlyY = flyY }
	:: d_step { sawY!=hasY -> printf("older: is shown what the younger one has: %d\n",hasY); goneY = (sawY!=0 -> sawY : goneY); sawY = hasY }
	/* go: allocator.rangeExcluder.rangesToExclude, allocator.rangeExcluder.surveyPool */
	:: d_step { YIELDED && SHARES(genE) && !SURVEYED -> printf("older: lists what the younger one has: %d\n",hasY);
		goneY = (sawY!=0 && sawY!=hasY -> sawY : goneY); sawY = hasY; surveyed = genE }
	/* go: grants.Planner.PlanGrants, allocator.statusWriter.commitGrants */
	:: d_step { SHARES(genE) && FENCED && YIELDED && SURVEYED && sawY==0 && sawFlyY==0 && flyE==0 && hasE==0 && nextE<=CLAIMS ->
		printf("older: grants the address to its claim %d\n",nextE); checkE(); flyE = nextE; nextE++ }
	/* go: allocator.claimantJobs.serveClaimant */
	:: d_step { flyE!=0 && hasE!=flyE -> printf("older: writes claim %d\n",flyE); hasE = flyE }
	/* go: grants.PoolState.confirmGrant */
	:: d_step { flyE!=0 && hasE==flyE && newestE -> printf("older: confirms the grant of claim %d\n",flyE); flyE = 0 }
	/* go: allocator.claimantJobs.releaseClaimant */
	:: d_step { flyE==0 && hasE!=0 -> printf("older: claim %d is deleted\n",hasE); hasE = 0 }
	od
}

/* ---------------------------------------------------------------------------------------- the younger pool */

/* Its word stays on record while the older pool is not known in a later generation, and then until that has nothing of this pool's.
 * go: allocator.rangeExcluder.excludeSharedRanges, allocator.rangeExcluder.rangesUsedByOlderPool, allocator.withLatestGeneration */
#ifndef NO_WORD
#define OUTSTANDING (yields!=0 && sawGen<=yields)
#else
#define OUTSTANDING false
#endif
#ifndef NO_LIST_BACK
#define LISTED (yields==0 || listed)
#else
#define LISTED true
#endif
#ifndef NO_WORD_STAYS
#define LEFT (yields!=0 && LISTED && sawE==0 && sawFlyE==0)
#else
#define LEFT (yields!=0 && LISTED)
#endif
#define OPEN (!SHARES(sawGen) && !OUTSTANDING && LISTED)
#define SAYS (SHARES(sawGen) -> (sawGen<yields -> yields : sawGen) : (OPEN && LEFT -> 0 : yields))

active proctype younger() {
end:	do
	/* go: allocator.Allocator.ObservePool, grants.Observed.trackUnresolvedGrants */
	:: d_step { sawGen!=gen || sawFlyE!=flyE ->
		printf("younger: is shown the older one, generation %d, in flight %d\n",gen,flyE);
		listed = (sawGen==gen && listed && !UNSEEN(sawFlyE,flyE,sawE,goneE)); sawGen = gen; sawFlyE = flyE }
	:: d_step { sawE!=hasE -> printf("younger: is shown what the older one has: %d\n",hasE); goneE = (sawE!=0 -> sawE : goneE); sawE = hasE }
	/* go: allocator.rangeExcluder.rangesUsedByOlderPool, allocator.rangeExcluder.surveyPool, grants.Overlap.UsedRangesIn */
	:: d_step { !SHARES(sawGen) && !OUTSTANDING && !LISTED -> printf("younger: lists what the older one has: %d\n",hasE);
		goneE = (sawE!=0 && sawE!=hasE -> sawE : goneE); sawE = hasE; listed = true }
	/* go: grants.StatusBuilder.FillStatus, allocator.statusWriter.commitGrants */
	:: d_step { yields!=SAYS -> printf("younger: commits that it yields to %d\n",SAYS); yields = SAYS }
	/* go: grants.Planner.PlanGrants, allocator.statusWriter.commitGrants */
	:: d_step { OPEN && sawE==0 && sawFlyE==0 && flyY==0 && hasY==0 && nextY<=CLAIMS ->
		printf("younger: grants the address to its claim %d\n",nextY); checkY(); yields = SAYS; flyY = nextY; nextY++ }
	/* go: allocator.claimantJobs.serveClaimant */
	:: d_step { flyY!=0 && hasY!=flyY -> printf("younger: writes claim %d\n",flyY); hasY = flyY }
	/* go: grants.PoolState.confirmGrant */
	:: d_step { flyY!=0 && hasY==flyY -> printf("younger: confirms the grant of claim %d\n",flyY); flyY = 0 }
	/* go: allocator.claimantJobs.releaseClaimant */
	:: d_step { flyY==0 && hasY!=0 -> printf("younger: claim %d is deleted\n",hasY); hasY = 0 }
#if TAKEOVERS
	/* Of its own pool another manager knows all, of the older one whatever was there once. go: allocator.statusWriter.takeOverPool */
	:: d_step { takeovers>0 && sawGen>0 -> printf("younger: another manager takes over, which knows generation %d\n",sawGen-1);
		takeovers--; sawGen--; sawFlyE = flyAt[sawGen]; sawE = 0; goneE = 0; listed = false }
	:: d_step { takeovers>0 -> printf("younger: another manager takes over, which knows the same generation\n");
		takeovers--; sawE = 0; goneE = 0; listed = false }
#endif
	od
}

active proctype user() {
end:	do
	:: d_step { gen<EDITS -> gen++; newestE = false; flyAt[gen] = flyE; printf("user: edits the older pool, generation %d\n",gen) }
	od
}

/* I2: when nothing moves any more, no grant is in flight, and whoever may grant the address has done so while there were claims. */
active proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	d_step {
		assert(flyE==0 && flyY==0); /* I2 */
		assert(SHARES(gen) -> nextE>CLAIMS : nextY>CLAIMS) /* I2 */
	}
}
