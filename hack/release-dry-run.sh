#!/bin/sh
# Makes a release on this machine: release-dry-run.sh "STEPS THAT BUILD" "STEPS THAT PUBLISH". The registry is on the
# loopback interface and in memory, the key is thrown away. Nothing else is asked, and nothing is left but bin/release.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
registry=
trap '[ -z "$registry" ] || kill "$registry"; rm -rf "$work"' EXIT

steps() {
	for step in $1; do
		echo "== make $step"
		make --no-print-directory "$step"
	done
}

rm -rf "$RELEASE"
steps "$1"
mv "$RELEASE" "$work/once"
echo "== once more"
steps "$1" >/dev/null
cmp "$work/once/checksums.txt" "$RELEASE/checksums.txt" || {
	echo "two builds of one commit differ:" >&2
	diff "$work/once/checksums.txt" "$RELEASE/checksums.txt" >&2 || true
	exit 1
}
echo "== twice the same bytes"

bin/tools/crane registry serve --address 127.0.0.1:0 >"$work/registry" 2>&1 &
registry=$!
until port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry") && [ -n "$port" ]; do
	kill -0 "$registry" || { cat "$work/registry" >&2; exit 1; }
	sleep 0.1
done
export PUSH_TO="127.0.0.1:$port/butlerdotdev"
export COSIGN_KEY="$work/cosign" COSIGN_PASSWORD=
(cd "$work" && "$OLDPWD/bin/tools/cosign" generate-key-pair 2>/dev/null)
steps "$2"
ls -l "$RELEASE"
