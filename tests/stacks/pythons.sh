#!/bin/sh
# Fetches CPythons of other versions from Debian, for tests/python_stacks.rs, and lists what is there.
#
#   tests/stacks/pythons.sh          fetches what is missing, then lists
#   tests/stacks/pythons.sh list     only lists: a line each, the version and the command that runs it
#
# Nothing is installed: packages are unpacked below target/pythons, each with the C library of
# its own release, whose loader runs it. Versions that Debian does not have are taken from pyenv
# where it has them. What cannot be had is left out, and its tests are skipped.
set -eu
cd "$(dirname "$0")/../.."

dir=$PWD/${CARGO_TARGET_DIR:-target}/pythons
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}

say() { echo "pythons: $*" >&2; }

get() { curl -sSf --retry 2 -m 120 -o "$2" "$1"; }

# unpack VERSION SUITE: the interpreter, its modules and the libraries that it needs
unpack() {
	version=$1 suite=$2 to=$dir/$1
	[ ! -x "$to/usr/bin/python$version" ] || return 0
	list=$dir/$suite.Packages
	if [ ! -s "$list" ]; then
		get "$mirror/dists/$suite/main/binary-amd64/Packages.xz" "$list.xz" || return 1
		xz -dc "$list.xz" >"$list"
	fi
	rm -rf "$to" "$to.part"
	mkdir -p "$to.part"
	for package in "python$version-minimal" "libpython$version-minimal" "libpython$version-stdlib" \
		libc6 libexpat1 zlib1g libgcc-s1; do
		file=$(sed -n "/^Package: $package\$/,/^\$/s/^Filename: //p" "$list" | head -n 1)
		[ -n "$file" ] || continue
		get "$mirror/$file" "$dir/package.deb" || return 1
		dpkg-deb -x "$dir/package.deb" "$to.part" || return 1
	done
	rm -f "$dir/package.deb"
	[ -x "$to.part/usr/bin/python$version" ] || return 1
	mv "$to.part" "$to"
}

if [ "${1-}" != list ]; then
	mkdir -p "$dir"
	while read -r version suite; do
		unpack "$version" "$suite" || say "no Python $version in $suite"
	done <<-end
		3.9 bullseye
		3.11 bookworm
		3.13 trixie
		3.14 sid
	end
fi

for python in "$dir"/*/usr/bin/python3.*; do
	[ -x "$python" ] || continue
	root=${python%/usr/bin/*}
	libraries=$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu
	# Old releases have an absolute link to it, recent ones have moved it below usr.
	for loader in "$root"/lib/x86_64-linux-gnu/ld-2.*.so "$root"/lib64/ld-linux-x86-64.so.2 \
		"$root"/usr/lib64/ld-linux-x86-64.so.2; do
		[ -x "$loader" ] || continue
		echo "${python##*/python} env PYTHONHOME=$root/usr $loader --library-path $libraries $python"
		break
	done
done
for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python3.* /usr/bin/python3.*; do
	version=${python##*/python}
	case $version in
	*[!0-9.]*) ;;
	*) [ ! -x "$python" ] || echo "$version $python" ;;
	esac
done
