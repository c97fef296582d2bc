#!/bin/sh
# Checks grants.pml with spin: every scenario with all rules, exhaustively and without an error; then once without each
# rule, where spin must find a counterexample. "check.sh trace NAME" prints the shortest counterexample of a rule.
#
# SPIN is spin's path, CC a C compiler. JOBS is how many searches run at once, MEMORY the limit of each in MB.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
SPIN=${SPIN:-spin}
CC=${CC:-gcc}
JOBS=${JOBS:-2}
MEMORY=${MEMORY:-4000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Name and what grants.pml is compiled with.
scenarios='
turns     -DUIDS=3 -DDELETES=1
deletes   -DUIDS=2
late      -DUIDS=2 -DDELETES=1 -DLATE=1
restart   -DUIDS=2 -DDELETES=1 -DCRASH=1 -DLATE=1
vanish    -DUIDS=3 -DDELETES=1 -DVANISH=1
force     -DUIDS=3 -DDELETES=1 -DFORCE=1
edit      -DUIDS=2 -DDELETES=1 -DEDIT=1
block     -DUIDS=2 -DBLOCK
cool      -DUIDS=2 -DDELETES=1 -DCOOL
wipe      -DUIDS=2 -DDELETES=1 -DWIPE=1
stale     -DUIDS=2 -DDELETES=1 -DSTALE=1
pools     -DUIDS=5 -DPOOLS -DVANISH=1 -DFORCE=1 -DLATE=2
calm      -DUIDS=2 -DCALM
'
# Rule and the scenario that needs it.
rules='
CAS             turns
ORDER           turns
LIST            turns
CLAIM_LIST      turns
INFLIGHT        turns
RECORD          turns
RECORD_TAKEN    turns
PATCH_FENCE     turns
UID_DELETE      turns
VOID_PROOF      turns
ADOPT_PROOF     turns
LIVE_ADOPT      turns
READBACK        late
SETTLE_PROOF    late
RECREATE_COMMIT force
SEEN            force
'

scenario() { printf '%s' "$scenarios" | sed -n "s/^$1  *//p"; }

# search NAME FLAGS SEARCH: builds the checker and runs it. The outcome is in $work/NAME.out.
search() (
	name=$1 flags=$2 how=$3
	mkdir "$work/$name"
	cd "$work/$name"
	cp "$here/grants.pml" .
	# shellcheck disable=SC2086 # flags are words
	"$SPIN" -a $flags grants.pml >spin.out 2>&1 || { cat spin.out >&2; exit 1; }
	# shellcheck disable=SC2086
	"$CC" -O2 -w -DSAFETY -DNOFAIR -DNOREDUCE -DMEMLIM="$MEMORY" $how -o pan pan.c
	./pan -m1000000 -w24 >"../$name.out" 2>&1 || true
	if [ -e grants.pml.trail ]; then
		# shellcheck disable=SC2086
		"$SPIN" $flags -t grants.pml >"../$name.trace" 2>/dev/null || true
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
		"$(number "$1" '.*depth reached \([0-9]*\),.*')" "$(number "$1" 'pan: elapsed time \([0-9.e+]*\) .*')" "$got"
	[ "$got" = "$3" ]
}

check() {
	# Each waits until there is room: a plain shell has no pool of jobs.
	running=0
	printf '%s' "$scenarios" >"$work/scenarios"
	printf '%s' "$rules" >"$work/rules"
	while read -r name flags; do
		[ -n "$name" ] || continue
		search "$name" "$flags" '' &
		running=$((running + 1))
		[ $((running % JOBS)) -ne 0 ] || wait
	done <"$work/scenarios"
	wait
	while read -r rule name; do
		[ -n "$rule" ] || continue
		search "NO_$rule" "-DNO_$rule $(scenario "$name")" '' &
		running=$((running + 1))
		[ $((running % JOBS)) -ne 0 ] || wait
	done <"$work/rules"
	wait

	bad=0
	printf '%-28s %10s %7s %8s  %s\n' scenario states depth seconds result
	while read -r name flags; do
		[ -n "$name" ] || continue
		row "$name" "$name" ok || bad=$((bad + 1))
	done <"$work/scenarios"
	printf '\n%-28s %10s %7s %8s  %s\n' 'without the rule, scenario' states depth seconds result
	while read -r rule name; do
		[ -n "$rule" ] || continue
		row "NO_$rule" "$rule, $name" counterexample || bad=$((bad + 1))
	done <"$work/rules"
	[ "$bad" -eq 0 ] || { printf '\n%s rows are not as they must be\n' "$bad" >&2; exit 1; }
}

case ${1:-check} in
check) check ;;
trace)
	name=$(printf '%s' "$rules" | sed -n "s/^$2  *//p")
	[ -n "$name" ] || { echo "there is no rule $2" >&2; exit 2; }
	search trace "-DPLAIN -DNO_$2 $(scenario "$name")" -DBFS
	sed -n 's/^ *\(manager\|user\|claim\|in the air\|the grace\|the status\|75 s\)/\1/p' "$work/trace.trace"
	[ "$(verdict trace)" = counterexample ]
	;;
*)
	echo "usage: check.sh [check | trace RULE]" >&2
	exit 2
	;;
esac
