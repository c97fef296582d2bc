#!/bin/sh
# Compares the modules that both the root and tools of hack/tools compile. What both have in the same version is compiled once, for
# the tool and for the manager; of another version, it and all that imports it are compiled twice by everybody who begins here.
#
#   align.sh check TOOL...   fails where versions differ, and names them
#   align.sh mend TOOL...    raises the older ones
set -eu
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

# compiled lists the modules of the packages that are compiled for patterns, with their versions.
compiled() {
	go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{or .Replace .}}{{end}}{{end}}' "$@" >"$work/list"
	awk '{ print $1, $NF }' "$work/list" | sort -u
}

# different prints tool, module, version of the root and version of the tool, for each module that differs.
different() {
	compiled -test ./... >"$work/root"
	for tool in "$@"; do
		(cd "hack/tools/$tool" && compiled tool) >"$work/tool"
		join "$work/root" "$work/tool" | awk -v tool="$tool" '$2 != $3 { print tool, $0 }'
	done
}

raise() { (cd "$1" && go get "$2@$3" && go mod tidy); }

what=$1
shift
for round in 1 2 3 4 5; do # to raise one module may raise others
	differs=$(different "$@")
	[ -n "$differs" ] || exit 0
	[ "$what" = mend ] || break
	printf '%s\n' "$differs" | while read -r tool module ours theirs; do
		if [ "$(printf '%s\n%s\n' "$ours" "$theirs" | sort -V | tail -n 1)" = "$ours" ]; then
			raise "hack/tools/$tool" "$module" "$ours"
		else
			raise . "$module" "$theirs"
		fi
	done
done
printf '%s\n' "$differs" | while read -r tool module ours theirs; do
	echo "hack/tools/$tool compiles $module $theirs, the root $ours" >&2
done
echo "make align raises the older ones" >&2
exit 1
