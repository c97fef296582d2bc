#!/bin/sh
# Checks grants.pml, overlap.pml, carve.pml, nodes.pml, hosts.pml, move.pml and arrive.pml with spin: every scenario with all rules, exhaustively and without an error; then once
# without each rule, where spin must find a counterexample, but for those rules that the model can do without. "check.sh trace NAME" prints the shortest counterexample of a rule.
#
# SPIN is spin's path, CC a C compiler. JOBS is how many searches run at once, MEMORY the limit of each in MB.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
SPIN=${SPIN:-spin}
command -v "$SPIN" >/dev/null || { echo "no spin: install it (apt-get install spin), or set SPIN to its path" >&2; exit 1; }
CC=${CC:-gcc}
JOBS=${JOBS:-2}
MEMORY=${MEMORY:-4000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Name and what the model is compiled with: overlap.pml with -DOVERLAP, carve.pml with -DCARVE, nodes.pml with -DNODES, hosts.pml with
# -DHOSTS, move.pml with -DMOVE, arrive.pml with -DARRIVE, grants.pml else.
scenarios='
turns     -DUIDS=3 -DDELETES=1
deletes   -DUIDS=2
late      -DUIDS=2 -DDELETES=1 -DLATE=1
restart   -DUIDS=2 -DDELETES=0 -DCRASH=1 -DLATE=1
vanish    -DUIDS=3 -DDELETES=1 -DVANISH=1
force     -DUIDS=3 -DDELETES=1 -DFORCE=1
edit      -DUIDS=2 -DDELETES=0 -DEDIT=1 -DLATE=1
block     -DUIDS=2 -DBLOCK
cool      -DUIDS=2 -DDELETES=1 -DCOOL
wipe      -DUIDS=2 -DDELETES=1 -DWIPE=1
stale     -DUIDS=2 -DDELETES=1 -DSTALE=1
pools     -DUIDS=5 -DPOOLS -DVANISH=1 -DFORCE=1 -DLATE=2
calm      -DUIDS=2 -DCALM
overlap   -DOVERLAP
taken     -DOVERLAP -DTAKEOVERS=2
edited    -DOVERLAP -DTAKEOVERS=1 -DEDITS=4
carved    -DCARVE -DTERMS=2
by-hand   -DCARVE -DTERMS=2 -DBLOCKS=1 -DBYHAND
old-event -DCARVE -DTERMS=2 -DBLOCKS=1 -DSTALE
lost      -DCARVE -DTERMS=3 -DBLOCKS=1 -DWIPE
nodes     -DNODES=3 -DDELETES=3 -DLOST
sizes     -DNODES=3 -DDELETES=2 -DLOST -DNESTED
families  -DNODES=3 -DDELETES=2 -DLOST -DFAMILIES
by-human  -DNODES=3 -DDELETES=1 -DLOST -DEDIT=2
killed    -DNODES=2 -DDELETES=1 -DLOST -DCRASH=2
refused   -DNODES=3 -DDELETES=1 -DLOST -DREFUSE
foreign   -DNODES=2 -DDELETES=1 -DLOST -DFOREIGN=1 -DSTEALS=2
quiet     -DNODES=3 -DDELETES=1 -DLOST -DSTEALS=2
ranges    -DNODES=2 -DRANGES -DLOST
shared    -DNODES=2 -DDELETES=1 -DRANGES -DSHARED
selected  -DNODES=2 -DRANGES -DONE -DUNSELECT=2
range-killed -DNODES=2 -DDELETES=1 -DRANGES -DCRASH=1
range-quiet  -DNODES=2 -DDELETES=1 -DRANGES -DLOST -DSTEALS=2
map-lost  -DNODES=2 -DRANGES -DDROPS=0 -DLOST -DWIPE=1
map-range -DNODES=2 -DDELETES=1 -DRANGES -DONE -DLOST -DWIPE=1
map-killed   -DNODES=2 -DDELETES=1 -DRANGES -DONE -DWIPE=1 -DCRASH=1
map-twice -DNODES=2 -DDELETES=1 -DRANGES -DDROPS=0 -DWIPE=2
map-quiet -DNODES=2 -DDELETES=1 -DRANGES -DWIPE=1 -DSTEALS=1
no-nodes  -DNODES=2 -DRANGES -DDROPS=0 -DWIPE=1 -DBY_NODES
three     -DNODES=2 -DDELETES=1 -DLOST -DMANAGERS=3
three-range  -DNODES=2 -DDELETES=1 -DRANGES -DONE -DLOST -DMANAGERS=3
three-map -DNODES=2 -DDELETES=1 -DRANGES -DONE -DDROPS=0 -DWIPE=1 -DMANAGERS=3
hosts     -DHOSTS=2 -DCUTS=2 -DPARTS=2
host-cut  -DHOSTS=2 -DCUTS=2 -DSTAYS
host-late    -DHOSTS=2 -DCUTS=1 -DPARTS=1 -DLEAVES=1 -DLATE=2
host-killed  -DHOSTS=2 -DCUTS=1 -DPARTS=1 -DSTOPS=2
host-behind  -DHOSTS=2 -DCUTS=1 -DPARTS=1 -DDELETES=1 -DBEHIND=1
host-ends -DHOSTS=2 -DCUTS=1 -DPARTS=1 -DDELETES=1 -DLEAVES=1
host-ends-late   -DHOSTS=2 -DPARTS=1 -DDELETES=1 -DLEAVES=1 -DLATE=1
host-ends-killed -DHOSTS=2 -DPARTS=1 -DDELETES=1 -DSTOPS=2
host-again   -DHOSTS=2 -DCUTS=1 -DPARTS=1 -DDELETES=1 -DLEASES=2
host-stays   -DHOSTS=2 -DCUTS=1 -DPARTS=1 -DSTOPS=1 -DFOREVER
hosts-three  -DHOSTS=3 -DCUTS=2 -DPARTS=1
hosts-three-ends -DHOSTS=3 -DPARTS=1 -DDELETES=1
moved     -DMOVE -DKILLS=4
moved-mirror     -DMOVE -DKILLS=4 -DMIRROR
moved-blocks     -DMOVE -DKILLS=4 -DBLOCKS
moved-pods       -DMOVE -DKILLS=4 -DBLOCKS -DPODS
moved-mirror-pods -DMOVE -DKILLS=4 -DBLOCKS -DPODS -DMIRROR
arrived-carved   -DARRIVE -DKILLS=4
restored-bare    -DARRIVE -DKILLS=4 -DBARE
'
# Rule and the scenario that needs it.
rules='
CAS             turns
ORDER           turns
LIST            turns
CLAIM_LIST      turns
INFLIGHT        turns
OWN_ID          turns
RECORD          turns
RECORD_FIRST    force
RECORD_TAKEN    turns
PATCH_FENCE     turns
UID_DELETE      turns
VOID            calm
VOID_PROOF      turns
ADOPT_PROOF     turns
LIVE_ADOPT      turns
READBACK        late
SETTLE_PROOF    late
LIVE_ADDRESS    turns
SEEN            force
NEWER           stale
COOL_FIRST      cool
QUARANTINE      wipe
AGE             wipe
EMPTY           wipe
YIELD_SEEN      overlap
GENERATION      overlap
SURVEY          overlap
UNSEEN          overlap
SPEC_FENCE      overlap
LIST_BACK       overlap
WORD            taken
WORD_STAYS      taken
ON_RECORD       carved
ALIVE           carved
CLOSED          carved
LIVE_CHILD      carved
SETTLED         carved
PROTECTED       by-hand
VERIFIED        old-event
LIST_BLOCK      lost
SAME_TERM       lost
ADOPTS          lost
N_CAS           nodes
N_ORDER         nodes
N_LIST          nodes
N_INFLIGHT      nodes
N_ONE           nodes
N_UID           nodes
N_UID_GONE      nodes
N_PROOF         nodes
N_ANSWER        nodes
N_CONFIRM       nodes
N_MONOTONE      nodes
N_OWN_ID        killed
N_READBACK      nodes
N_SAME_AGAIN    nodes
N_SIZES         sizes
N_FAMILIES      families
N_SEQ           by-human
N_OWN_GRANT     refused
N_DOUBT         refused
N_LEAVES        refused
N_SET_BY_ANY    foreign
N_INHERIT       quiet
N_ABSENT        quiet
N_MARK          ranges
N_VERIFIED      ranges
N_READ_TERM     ranges
N_ALIVE         ranges
N_WHITE_LIST    ranges
N_CLOSED        ranges
N_CLOSE_ALWAYS  ranges
N_LIST_AFTER    ranges
N_SETTLED_FIRST ranges
N_USED          ranges
N_TOUCH         selected
N_RV_FIRST      selected
N_END_RV        selected
N_QUARANTINE    map-lost
N_EMPTY         map-lost
N_RELIST        map-lost
N_AGE           map-lost
N_STAMP         map-lost
N_ADOPTS        map-range
H_CAS           host-late
H_SURE          host-late
H_LAPSE         hosts
H_FRESH         hosts
H_HEARD         host-cut
H_REREAD        host-behind
H_LEASE         host-ends
H_LEASE_AFTER   host-ends
H_LOCK_FIRST    hosts
H_PROBE         hosts
H_ANEW          host-ends
H_OFF           hosts
H_HEAR          host-stays
H_LIFETIME      host-killed
H_OFF_FIRST     host-late
H_LEFT          host-ends
H_ASK           host-ends
H_TAKE_LEFT     host-ends
H_THEN_READ     host-ends
H_UNLOCK        host-again
ARRIVAL         moved
NAMED           moved
LIST_AFTER      moved
HELD            moved
ANEW            moved-mirror
AWAY            moved-blocks
NOT_MOVED       moved-pods
POOL_THERE      moved-pods
SITE_PAUSED     moved-pods
P_ARRIVAL       arrived-carved
C_ARRIVAL       arrived-carved
P_LIST          arrived-carved
C_LIST          arrived-carved
ASKS            arrived-carved
KEEPS           arrived-carved
GIVEN           arrived-carved
MARK            restored-bare
COUNTS          restored-bare
LATER           restored-bare
RANGE           restored-bare
'
# Rules that this model can do without, and a scenario in which it does. See README.md for why.
spare='
LIVE_POOL       cool
GRANT_CHECK     turns
NAME_WAIT       turns
RECREATE_COMMIT force
DRAINED         carved
UNUSED          carved
N_TERM          killed
N_LIST_CLOSE    ranges
H_AGE           hosts
'

scenario() { printf '%s' "$scenarios" | sed -n "s/^$1  *//p"; }

# search NAME FLAGS SEARCH: builds the checker and runs it. The outcome is in $work/NAME.out.
search() (
	name=$1 flags=$2 how=$3
	mkdir "$work/$name"
	cd "$work/$name"
	case $flags in
	*-DOVERLAP*) cp "$here/overlap.pml" model.pml ;;
	*-DCARVE*) cp "$here/carve.pml" model.pml ;;
	*-DNODES*) cp "$here/nodes.pml" model.pml ;;
	*-DHOSTS*) cp "$here/hosts.pml" model.pml ;;
	*-DMOVE*) cp "$here/move.pml" model.pml ;;
	*-DARRIVE*) cp "$here/arrive.pml" model.pml ;;
	*) cp "$here/grants.pml" model.pml ;;
	esac
	# shellcheck disable=SC2086 # flags are words
	"$SPIN" -a $flags model.pml >spin.out 2>&1 || { cat spin.out >&2; exit 1; }
	# shellcheck disable=SC2086
	"$CC" -O1 -w -DSAFETY -DNOFAIR -DNOREDUCE -DMEMLIM="$MEMORY" $how -o pan pan.c
	./pan -m1000000 -w24 >"../$name.out" 2>&1 || true
	if [ -e model.pml.trail ]; then
		# shellcheck disable=SC2086
		"$SPIN" $flags -t model.pml >"../$name.trace" 2>/dev/null || true
		# The line of the assertion says which invariant it is of.
		line=$(sed -n 's/.*model.pml:\([0-9]*\), Error: assertion violated.*/\1/p' "../$name.trace" | head -n 1)
		sed -n "${line:-1}s|.*/\* \([HIMN][0-9]\) \*/.*|\1|p" model.pml >"../$name.broken"
	fi
	rm -f pan
)

number() { sed -n "s/$2/\\1/p" "$work/$1.out" | head -n 1; }

# verdict NAME: ok, counterexample, or what spin says went wrong.
verdict() {
	out=$work/$1.out
	if grep -q 'assertion violated' "$out"; then
		echo counterexample
	elif grep -Eqi 'max search depth too small|out of memory|aborted|not completed|error:' "$out"; then
		echo incomplete
	elif grep -q 'State-vector.*errors: 0' "$out"; then
		echo ok
	else
		echo failed
	fi
}

# row NAME SHOWN WANTED: a row of the table; false if the verdict is another.
row() {
	got=$(verdict "$1")
	printf '%-28s %10s %7s %8s  %s\n' "$2" "$(number "$1" ' *\([0-9.e+]*\) states, stored.*')" \
		"$(number "$1" '.*depth reached \([0-9]*\),.*')" "$(number "$1" 'pan: elapsed time \([0-9.e+]*\) .*')" \
		"$got$([ "$got" != counterexample ] || sed 's/^/ to /' "$work/$1.broken")"
	[ "$got" = "$3" ]
}

# start NAME FLAGS: a search beside the others. A plain shell has no pool of jobs: each batch waits for its slowest.
running=0
start() {
	echo "searching $1" >&2
	search "$1" "$2" '' &
	running=$((running + 1))
	[ $((running % JOBS)) -ne 0 ] || wait
}

# rows HEAD SUFFIX WANTED: a table of what was searched, from the list on standard input.
rows() {
	printf '\n%-28s %10s %7s %8s  %s\n' "$1" states depth seconds result
	while read -r name rest; do
		[ -n "$name" ] || continue
		case $2 in
		'') row "$name" "$name" "$3" || echo "$name" >>"$work/bad" ;;
		*) row "$2$name" "$name, $rest" "$3" || echo "$name" >>"$work/bad" ;;
		esac
	done
}

check() {
	printf '%s' "$scenarios" >"$work/scenarios"
	printf '%s' "$rules" >"$work/rules"
	printf '%s' "$spare" >"$work/spare"
	while read -r name flags; do
		[ -n "$name" ] || continue
		start "$name" "$flags"
	done <"$work/scenarios"
	while read -r name flags; do
		[ -n "$name" ] || continue
		start "rest-$name" "$flags -DSEE_REST"
	done <"$work/scenarios"
	cat "$work/rules" "$work/spare" >"$work/both"
	while read -r rule name; do
		[ -n "$rule" ] || continue
		start "NO_$rule" "-DNO_$rule $(scenario "$name")"
	done <"$work/both"
	wait
	: >"$work/bad"
	rows 'all rules, scenario' '' ok <"$work/scenarios"
	rows 'without the rule, scenario' NO_ counterexample <"$work/rules"
	rows 'can do without, scenario' NO_ ok <"$work/spare"
	# Where nothing ever comes to rest, nothing was checked there.
	while read -r name flags; do
		[ -z "$name" ] || [ "$(verdict "rest-$name")" = counterexample ] || echo "$name never rests" >>"$work/bad"
	done <"$work/scenarios"
	[ ! -s "$work/bad" ] || { printf '\nnot as it must be:\n' >&2; cat "$work/bad" >&2; exit 1; }
}

case ${1:-check} in
check) check ;;
trace)
	name=$(printf '%s' "$rules" | sed -n "s/^$2  *//p")
	[ -n "$name" ] || { echo "there is no rule $2" >&2; exit 2; }
	search trace "-DPLAIN -DNO_$2 $(scenario "$name")" -DBFS
	if [ ! -e "$work/trace.trace" ]; then
		echo "not found breadth-first within $MEMORY MB; this one is longer than it need be" >&2
		rm -r "$work/trace" && search trace "-DNO_$2 $(scenario "$name")" ''
	fi
	sed -n 's/^ *\(manager\|older\|younger\|parent\|user\|claim\|in the air\|the grace\|the status\|75 s\|host\|node\|the mark\|source\|target\|clusterctl\|child\|restore\|the ConfigMap\)/\1/p' "$work/trace.trace"
	[ "$(verdict trace)" = counterexample ]
	;;
*)
	echo "usage: check.sh [check | trace RULE]" >&2
	exit 2
	;;
esac
