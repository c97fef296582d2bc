#!/bin/sh
# The steps of a release that are more than a build: `make release-NAME` runs them. They work in $RELEASE.
set -eu
tools=$(cd "$(dirname "$0")/.." && pwd)/bin/tools
repository=https://github.com/butlerdotdev/cluster-api-ipam-provider-butler

# How it is signed, and what a signature is verified by: in a workflow by who runs it, otherwise by a key.
if [ -n "${COSIGN_KEY:-}" ]; then
	sign="--key $COSIGN_KEY.key --use-signing-config=false --tlog-upload=false"
	verify="--key $COSIGN_KEY.pub --insecure-ignore-tlog"
else
	sign=
	verify="--certificate-oidc-issuer https://token.actions.githubusercontent.com"
	verify="$verify --certificate-identity $repository/.github/workflows/release.yaml@refs/tags/$VERSION"
fi

# notes are the section of CHANGELOG.md; that of what is not released yet is what a version with a suffix is made of.
notes() {
	section=${VERSION#v}
	case $section in *-*) section=Unreleased ;; esac
	mkdir -p "$(dirname "$RELEASE_NOTES")"
	awk -v head="## [$section]" '/^## / { on = index($0, head) == 1; next } on' CHANGELOG.md >"$RELEASE_NOTES"
	grep -q '[^[:space:]]' "$RELEASE_NOTES" || {
		echo "CHANGELOG.md says nothing of [$section]: write a section, or rename Unreleased" >&2
		exit 1
	}
}

checksums() {
	cd "$RELEASE"
	rm -f checksums.txt ./*.sigstore.json
	find . -type f | sed 's|^\./||' | LC_ALL=C sort | xargs sha256sum >"$RELEASE.checksums"
	mv "$RELEASE.checksums" checksums.txt
	cat checksums.txt
}

login() { printf %s "$REGISTRY_TOKEN" | "$tools/crane" auth login "${1%%/*}" --username "$REGISTRY_USER" --password-stdin; }

# push pushes the image of each archive, and lists what the registry calls it.
push() {
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	: >"$PUSHED"
	while read -r archive image; do
		name=${image%@*}
		[ -z "${PUSH_TO:-}" ] || name=$PUSH_TO/${name##*/}
		mkdir "$work/image"
		tar -xf "$RELEASE/$archive" -C "$work/image"
		"$tools/crane" push "$work/image" "$name" --image-refs "$work/refs"
		[ "$(sed 's/.*@//' "$work/refs")" = "${image##*@}" ] || {
			echo "$name is $(cat "$work/refs"), not ${image##*@}" >&2
			exit 1
		}
		echo "${archive%"-$VERSION.tar"} $(cat "$work/refs")" >>"$PUSHED"
		rm -rf "$work/image"
	done <"$RELEASE/images.txt"
}

# shellcheck disable=SC2086 # the flags are words
sign() {
	for file in "$RELEASE"/checksums.txt "$RELEASE"/*.cdx.json; do
		"$tools/cosign" sign-blob --yes $sign --bundle "$file.sigstore.json" "$file" >/dev/null
	done
	while read -r program image; do
		"$tools/cosign" sign --yes $sign "$image"
		"$tools/cosign" attest --yes $sign --type cyclonedx --predicate "$RELEASE/$program.cdx.json" "$image"
	done <"$PUSHED"
}

# shellcheck disable=SC2086 # the flags are words
verify() {
	cd "$RELEASE"
	sha256sum --check --quiet checksums.txt
	for file in checksums.txt *.cdx.json; do
		"$tools/cosign" verify-blob $verify --bundle "$file.sigstore.json" "$file"
	done
	while read -r program image; do
		"$tools/cosign" verify $verify "$image" >/dev/null
		"$tools/cosign" verify-attestation $verify --type cyclonedx "$image" >/dev/null
		echo "$program: $image is signed, and so is what it is made of"
	done <"$PUSHED"
}

draft() {
	case $VERSION in *-*) set -- --prerelease ;; *) set -- ;; esac
	gh release create "$VERSION" "$@" --draft --verify-tag --title "$VERSION" --notes-file "$RELEASE_NOTES" "$RELEASE"/*
}

"$@"
