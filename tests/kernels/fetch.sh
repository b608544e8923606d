#!/bin/sh
# Fetches the newest kernel for clouds of one of Debian's suites, and nothing else of it.
#
#   tests/kernels/fetch.sh SUITE DIR     bookworm, trixie, trixie-backports, sid, ...; writes DIR/vmlinuz
#
# apt checks the signatures. Its lists and caches are in DIR while this runs; the machine's own are not touched,
# and no root is needed. Where the kernel cannot be had, the last line says why, and the exit status is 77.
set -eu

suite=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)
work=$dir/apt

skip() {
	echo "$suite: $*" >&2
	exit 77
}

for tool in apt-get apt-cache dpkg-deb; do
	command -v $tool >/dev/null || skip "needs $tool"
done
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r $keys ] || skip "needs $keys"

# Also when interrupted.
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

apt() {
	tool=$1
	shift
	"$tool" -qq -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User= \
		-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
		-o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false -o Acquire::Retries=2 \
		-o Dir::Etc::SourceList="$work/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$work" \
		-o Dir::State::Lists="$work/lists" -o Dir::State::Status="$work/status" -o Dir::Cache="$work" "$@"
}

# Reads the lists of one place.
look_in() {
	rm -rf "$work"
	mkdir -p "$work/lists/partial" "$work/archives/partial" "$work/packages" "$work/root"
	: >"$work/status"
	echo "deb [arch=amd64 signed-by=$keys] http://deb.debian.org/$*" >"$work/sources"
	apt apt-get update >"$work/log" 2>&1 || return 1
	apt apt-cache show linux-image-cloud-amd64 >"$work/log" 2>&1
}

# The kernels of a release are updated in its security suite, whose lists are short.
look_in debian-security "$suite-security" main || look_in debian "$suite" main || skip "$(tail -1 "$work/log")"

# What a package depends on, of those that have a kernel: the one named after a version, or newer ones' binary.
next() {
	apt apt-cache show --no-all-versions "$1" | sed -n 's/([^)]*)//g; s/[,|] */\n/g; s/ //g; s/^Depends://p' | grep -m 1 "^linux-$2-[0-9]"
}
image=$(next linux-image-cloud-amd64 image) || skip "it has no linux-image-cloud-amd64"
package=$(next "$image" binary) || package=$image
(cd "$work/packages" && apt apt-get download "$package") >"$work/log" 2>&1 || skip "no $package: $(tail -1 "$work/log")"
dpkg-deb --fsys-tarfile "$work"/packages/*.deb | tar -x -C "$work/root" --wildcards '*/vmlinuz*' ||
	skip "no vmlinuz in $package"
find "$work/root" -type f -name 'vmlinuz*' -exec mv {} "$dir/vmlinuz" \;
echo "$suite: $package"
