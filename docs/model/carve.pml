/* A pool that is carved from another one, and a block of it that comes and goes (R13); see README.md.
 *
 * Two managers serve the carved pool by turns, each of which may be slow, and believe what its watches have shown it once. The block has one address.
 * When the block is gone its parent gives the address to somebody else, and may get it back. A step is one access to the API server; a commit, a delete
 * and a patch of the block are two: the request is sent, and arrives at any later time. Each manager has one commit and one other request under way.
 *
 * "go:" names the function that a step stands for. NO_x takes rule x away; the scenarios are in check.sh. */

#ifndef BLOCKS
#define BLOCKS 2                /* IPAllocations of the block's name, one after the other */
#endif
#ifndef CLAIMS
#define CLAIMS 1                /* claims of the carved pool, one after the other */
#endif
#ifndef TERMS
#define TERMS 3                 /* takeovers */
#endif
#ifndef GIVES
#define GIVES 1
#endif

/* The API server. The block: its UID, 0 if there is none. */
byte uid, last;
bool granted, deleting, protected;
bool others;                    /* somebody else has the address */
/* The carved pool. */
byte holder = 2;
byte listed;                    /* status.blocks: the UID of the block, 0 if it is not open */
bool drains;
byte fly, has;                  /* the claim that has the address in flight, and that which has an IPAddress */
byte next = 1, terms = TERMS;
byte deletes = BLOCKS;          /* of users */
byte gives = GIVES;          /* times that somebody else gets the address */
byte keeps = 1;                 /* times that a block which drains is needed again */
#ifdef STALE
byte stale = 1;
#endif
#ifdef WIPE
byte wipes = 1;
byte late;                      /* a grant that was in flight when the status was lost, and may be written yet */
bool adopting;                  /* the 75 s of R10 */
#endif

/* The managers. */
typedef Manager {
	bool holds;                 /* it believes to be the holder */
	bool fences;                /* it has written itself as the holder, and not listed yet */
	bool newest;                /* pool.base has the resourceVersion of the pool */
	byte baseListed; bool baseDrains; byte baseFly;
	byte saw; bool sawGranted, sawDeleting, sawProtected;   /* the block, as watches, lists and answers have shown it */
	bool verified;              /* a read of this term has shown it */
	bool adopts;                /* it waits for what was granted before the status was lost */
	byte sawHas;                /* the claim that has an IPAddress */
	bool commits;               /* a commit is under way, and what it says */
	bool fits;                  /* it carries the resourceVersion of the pool */
	byte says; bool saysDrains; byte saysFly;
	byte sends, whom;           /* the job that is under way, and the block that it is for */
	bool same;                  /* it was begun in this term */
}
Manager m[2];

#define NOTHING 0
#define DELETE 1                /* the request is sent */
#define READ_CHILD 2            /* the block is to go back: first the pool is read, */
#define LIST_USE 3              /* then what is in use is listed, */
#define RELEASE 4               /* then the patch that takes the finalizer off is sent */

inline learn(i) { m[i].newest = true; m[i].baseListed = listed; m[i].baseDrains = drains; m[i].baseFly = fly }
inline see(i) { m[i].saw = uid; m[i].sawGranted = granted; m[i].sawDeleting = deleting; m[i].sawProtected = protected }
inline commit(i, open_, drain_, fly_) { m[i].commits = true; m[i].fits = m[i].newest; m[i].says = open_; m[i].saysDrains = drain_; m[i].saysFly = fly_ }
/* What one manager writes, the other one has not read. */
inline written(i) { m[1-i].newest = false; m[1-i].fits = false }

/* I1: nobody else has the address while the carved pool has it in use or in flight. */
inline check() { assert(!(others && (fly!=0 || has!=0))) /* I1 */ }

#ifndef NO_VERIFIED
#define VERIFIED m[i].verified
#else
#define VERIFIED true
#endif
#ifndef NO_ALIVE
#define ALIVE !m[i].sawDeleting
#else
#define ALIVE true
#endif
#ifndef NO_PROTECTED
#define PROTECTED m[i].sawProtected
#else
#define PROTECTED true
#endif
#ifndef NO_ON_RECORD
#define OPEN (m[i].baseListed!=0)
#else
#define OPEN (m[i].saw!=0 && m[i].sawGranted)
#endif
#ifndef NO_DRAINED
#define DRAINED m[i].baseDrains
#else
#define DRAINED true
#endif
#ifndef NO_UNUSED
#define UNUSED (m[i].sawHas==0 && m[i].baseFly==0)
#else
#define UNUSED true
#endif
#ifndef NO_LIVE_CHILD
#define FIRST READ_CHILD
#else
#define FIRST LIST_USE
#endif
#ifndef NO_LIST_BLOCK
#define SECOND LIST_USE
#else
#define SECOND RELEASE
#endif
#ifndef NO_SAME_TERM
#define SAME_TERM m[i].same
#else
#define SAME_TERM true
#endif
#ifndef NO_SETTLED
#define SETTLED !m[i].commits
#else
#define SETTLED true
#endif
#ifndef NO_CLOSED
#define CLOSED (m[i].baseListed==0)
#define NOT_LISTED (listed==0)
#else
#define CLOSED true
#define NOT_LISTED true
#endif

#define IDLE (m[i].holds && !m[i].commits)

#ifndef NO_ADOPTS
#define KNOWN !m[i].adopts
#else
#define KNOWN true
#endif

proctype manager(byte i) {
end:	do
	/* Another holder: first the write, then the list. go: allocator.statusWriter.takeOverPool */
	:: d_step { terms>0 && !m[i].holds && !m[i].fences && !m[i].commits ->
		printf("manager %d: takes over\n",i); terms--; written(i); holder = i; m[i].fences = true; m[i].same = false; learn(i);
#ifdef WIPE
		m[i].adopts = adopting
#endif
	}
	:: d_step { m[i].fences -> printf("manager %d: lists\n",i);
		m[i].fences = false; m[i].holds = true; see(i); m[i].verified = (uid!=0); m[i].sawHas = has }
	/* go: grants.PoolState.RefreshBasePool */
	:: d_step { m[i].holds && holder!=i && !m[i].commits -> printf("manager %d: sees that its turn is over\n",i); m[i].holds = false }
	/* What the watch shows. go: grants.PoolState.ObserveBlock, grants.CarvedPool.ForgetBlock */
	:: d_step { m[i].saw!=uid || m[i].sawGranted!=granted || m[i].sawDeleting!=deleting || m[i].sawProtected!=protected ->
		printf("manager %d: is shown the block %d\n",i,uid); m[i].verified = (m[i].verified && m[i].saw==uid); see(i) }
	:: d_step { m[i].sawHas!=has -> printf("manager %d: is shown that claim %d has the address\n",i,has); m[i].sawHas = has }
#ifdef WIPE
	/* go: grants.Quarantine.RestoreQuarantine, grants.PoolState.EndAdoption */
	:: d_step { m[i].adopts && !adopting -> printf("manager %d: has adopted what there is\n",i); m[i].adopts = false }
#endif
#ifdef STALE
	/* An event of a block that is gone, which comes after the list of the takeover. */
	:: d_step { stale>0 && m[i].saw==0 && last>0 && uid!=last -> printf("manager %d: is shown the block %d, which is gone\n",i,last);
		stale--; m[i].saw = last; m[i].sawGranted = true; m[i].sawDeleting = false; m[i].sawProtected = true; m[i].verified = false }
#endif
#ifdef BYHAND
	/* go: allocator.blockRequests.patchBlockFinalizers */
	:: d_step { m[i].holds && m[i].saw!=0 && m[i].saw==uid && !deleting && !protected -> printf("manager %d: protects the block %d\n",i,uid);
		protected = true; see(i); m[i].verified = true }
#endif
	/* A live read. go: allocator.blockRequests.refreshBlock */
	:: d_step { m[i].holds && m[i].saw!=0 && !m[i].verified -> printf("manager %d: reads the block %d\n",i,uid); see(i); m[i].verified = (uid!=0) }
	/* go: allocator.blockRequests.createBlock */
	:: d_step { m[i].holds && m[i].saw==0 && uid==0 && last<BLOCKS ->
		last++; uid = last; granted = false; deleting = false; protected = true;
		printf("manager %d: asks for the block %d\n",i,uid); see(i); m[i].verified = true }
	/* It opens the block. go: carve.Decision.settleBlock, grants.Growth.PlanBlocks, allocator.statusWriter.commitGrants */
	:: d_step { IDLE && m[i].baseListed==0 && m[i].saw!=0 && m[i].sawGranted && PROTECTED && ALIVE && VERIFIED ->
		printf("manager %d: sends that the block %d is open\n",i,m[i].saw); commit(i, m[i].saw, false, m[i].baseFly) }
	/* It drains it, or does so no more. go: carve.Decision.drainOrClose, carve.Decision.releaseIdleBlocks */
	:: d_step { IDLE && m[i].baseListed!=0 && !m[i].baseDrains ->
		printf("manager %d: sends that the block drains\n",i); commit(i, m[i].baseListed, true, m[i].baseFly) }
	:: d_step { IDLE && m[i].baseListed!=0 && keeps>0 && m[i].baseDrains && m[i].saw!=0 && !m[i].sawDeleting ->
		printf("manager %d: sends that the block is kept\n",i); keeps--; commit(i, m[i].baseListed, false, m[i].baseFly) }
	/* go: allocator.blockRequests.executeBlockRequest */
	:: d_step { m[i].holds && m[i].sends==NOTHING && m[i].baseListed!=0 && m[i].baseDrains && m[i].saw!=0 && !m[i].sawDeleting ->
		printf("manager %d: sends the delete of the block %d\n",i,m[i].saw); m[i].sends = DELETE; m[i].whom = m[i].saw }
	/* It closes it. */
	:: d_step { IDLE && KNOWN && m[i].baseListed!=0 && DRAINED && (m[i].sawDeleting || m[i].saw==0) && UNUSED ->
		printf("manager %d: sends that the block is closed\n",i); commit(i, 0, false, m[i].baseFly) }
	/* It gives it back. go: allocator.blockRequests.verifyBlockReleasable, allocator.blockRequests.patchBlockFinalizers */
	:: d_step { m[i].holds && m[i].sends==NOTHING && KNOWN && SETTLED && m[i].saw!=0 && m[i].sawDeleting && m[i].sawProtected && CLOSED ->
		printf("manager %d: begins to give the block %d back\n",i,m[i].saw); m[i].sends = FIRST; m[i].whom = m[i].saw; m[i].same = true }
	:: d_step { m[i].sends==READ_CHILD -> printf("manager %d: reads the pool\n",i); m[i].sends = (holder==i && SAME_TERM && m[i].baseFly==0 && NOT_LISTED -> SECOND : NOTHING) }
	:: d_step { m[i].sends==LIST_USE -> printf("manager %d: lists what is in use\n",i); m[i].sawHas = has;
		m[i].sends = (has==0 -> RELEASE : NOTHING) }
	/* A grant. go: grants.Planner.PlanGrants, allocator.statusWriter.commitGrants */
	:: d_step { IDLE && !m[i].adopts && OPEN && !m[i].baseDrains && m[i].baseFly==0 && m[i].sawHas==0 && next<=CLAIMS ->
		printf("manager %d: sends the grant to claim %d\n",i,next); commit(i, m[i].baseListed, false, next) }
	:: d_step { IDLE && m[i].baseFly!=0 && m[i].sawHas==m[i].baseFly ->
		printf("manager %d: sends that claim %d has what it was granted\n",i,m[i].baseFly); commit(i, m[i].baseListed, m[i].baseDrains, 0) }
	/* What is under way arrives. */
	:: d_step { m[i].commits && m[i].fits -> printf("manager %d: the commit lands\n",i);
		next = (m[i].saysFly!=0 && m[i].saysFly!=fly -> next+1 : next);
		written(i); listed = m[i].says; drains = m[i].saysDrains; fly = m[i].saysFly; m[i].commits = false; learn(i); check() }
	:: d_step { m[i].commits && !m[i].fits -> printf("manager %d: the commit is refused\n",i);
		m[i].commits = false; m[i].holds = (holder==i && m[i].holds); learn(i) }
	:: d_step { m[i].sends==DELETE -> printf("manager %d: the delete of the block %d arrives\n",i,m[i].whom);
		deleting = (deleting || (uid!=0 && uid==m[i].whom)); m[i].sends = NOTHING }
	:: d_step { m[i].sends==RELEASE -> printf("manager %d: the patch of the block %d arrives\n",i,m[i].whom);
		protected = (protected && uid!=m[i].whom); m[i].sends = NOTHING }
	od
}

/* The jobs of the carved pool, and its claims. go: allocator.claimantJobs.serveClaimant, allocator.claimantJobs.releaseClaimant */
active proctype claims() {
end:	do
	:: d_step { fly!=0 && has==0 -> printf("claim %d: has its IPAddress\n",fly); has = fly; check() }
#ifdef WIPE
	:: d_step { late!=0 && has==0 -> printf("claim %d: has its IPAddress, late\n",late); has = late; late = 0; check() }
	:: d_step { late!=0 -> printf("claim %d: the write is lost\n",late); late = 0 }
	:: d_step { adopting && late==0 -> printf("75 s: are over\n"); adopting = false }
#endif
	:: d_step { fly==0 && has!=0 -> printf("claim %d: is released\n",has); has = 0 }
	od
}

/* The parent, and who else it may give the address to. */
active proctype parent() {
end:	do
	:: d_step { uid!=0 && !granted && !deleting && !others -> printf("parent: gives the block %d\n",uid); granted = true }
	:: d_step { uid!=0 && deleting && !protected -> printf("parent: has the block %d back\n",uid); uid = 0; granted = false; deleting = false }
	:: d_step { gives>0 && !others && (uid==0 || !granted) -> printf("parent: gives the address to somebody else\n"); others = true; gives--; check() }
	:: d_step { others -> printf("parent: has the address back\n"); others = false }
	od
}

/* A user deletes the block. */
active proctype user() {
end:	do
#ifdef BYHAND
	:: d_step { uid==0 && last<BLOCKS -> last++; uid = last; granted = false; deleting = false; protected = false; printf("user: makes the block %d\n",uid) }
#endif
#ifdef WIPE
	:: d_step { wipes>0 -> printf("the status: is lost\n"); wipes--; late = (fly!=0 && has!=fly -> fly : 0); adopting = true;
		listed = 0; drains = false; fly = 0; holder = 2; written(0); written(1) }
#endif
	:: d_step { deletes>0 && uid!=0 && !deleting -> printf("user: deletes the block %d\n",uid); deleting = true; deletes-- }
	od
}

/* I2: when nothing moves any more, and somebody is the holder, no block is open or left, and no grant in flight. */
active proctype rest() {
	timeout ->
#ifdef SEE_REST
	assert(false);
#endif
	assert((m[0].holds || m[1].holds) -> (uid==0 && listed==0 && fly==0) : true) /* I2 */
}

init { run manager(0); run manager(1) }
