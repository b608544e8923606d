#!/bin/sh
# A package for Debian and Ubuntu. Run by `make deb`; writes target/dist/gdiag_VERSION_ARCHITECTURE.deb.
#
# REVISION (default 1) counts packages of one version. The maintainer is DEBFULLNAME and DEBEMAIL, as in Debian's
# tools, or else whoever made the last commit.
set -eu
cd "$(dirname "$0")/.."
. .packaging/lib.sh

for tool in dpkg-deb dpkg-shlibdeps; do
	command -v $tool >/dev/null || {
		echo "deb: needs $tool (Debian's package dpkg-dev)" >&2
		exit 1
	}
done
full=$version-${REVISION:-1}
if [ -n "${DEBEMAIL:-}" ]; then
	maintainer="${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>"
else
	maintainer=$(git log -1 --format='%an <%ae>')
fi
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/gdiag
documents=$stage/usr/share/doc/gdiag

${MAKE:-make} -s install DESTDIR="$stage" PREFIX=/usr ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions
gzip -9n "$stage"/usr/share/man/man1/*

mkdir -p "$documents" "$stage/usr/share/lintian/overrides" "$stage/DEBIAN" "$work/debian"
cp .packaging/copyright "$documents/copyright"
cp -R README.md BENCHMARKS.md docs "$documents/"
.packaging/licences.py | gzip -9n >"$documents/LICENSES-THIRD-PARTY.gz"
gzip -9n <CHANGELOG.md >"$documents/changelog.gz"
gzip -9n >"$documents/changelog.Debian.gz" <<END
gdiag ($full) unstable; urgency=medium

  * Package of version $version. What is new in it is in changelog.gz.

 -- $maintainer  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
END
cp .packaging/lintian-overrides "$stage/usr/share/lintian/overrides/gdiag"

# Wants the beginning of a source package around it.
printf 'Source: gdiag\n\nPackage: gdiag\nArchitecture: any\n' >"$work/debian/control"
# glibc by the versions that gdiag names: what was in another library of glibc's before, dpkg-shlibdeps counts from
# the release that moved it.
glibc=$(needed_glibc "$stage/usr/bin/gdiag")
depends=$(cd "$work" && dpkg-shlibdeps -O -Sgdiag -egdiag/usr/bin/gdiag 2>/dev/null |
	sed -n "s/^shlibs:Depends=//p" | sed "s/libc6 (>= [^)]*)/libc6 (>= $glibc)/")
[ -n "$depends" ] || {
	echo "deb: dpkg-shlibdeps finds no packages for the libraries of gdiag" >&2
	exit 1
}
size=$(du -k --apparent-size -s "$stage/usr" | cut -f1)
cat >"$stage/DEBIAN/control" <<END
Package: gdiag
Version: $full
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: $depends
Section: utils
Priority: optional
Description: explains why a GPU is idle, and who is to blame
 gdiag records what a GPU did (CUPTI) and what the host did (eBPF) on one
 clock, finds every gap in which the GPU had nothing to do, and gives each
 nanosecond of each gap one cause: a thread that was preempted, a cold file, a
 lock, a synchronisation, a slow data loader, launches that cost more than what
 they start, or the device itself. With who, the evidence, and what to do.
 .
 It also draws flame graphs of that, shows the causes live, sums up the CPU
 scheduler and system calls, writes timelines for Perfetto, and can keep the
 last seconds in memory. Recording needs root and Linux 5.15 or newer.
END
normalize "$stage"
(cd "$stage" && find usr -type f | LC_ALL=C sort | xargs -d '\n' md5sum >DEBIAN/md5sums)
normalize "$stage/DEBIAN"
mkdir -p "$target/dist"
package=$target/dist/gdiag_${full}_$architecture.deb
dpkg-deb --root-owner-group -Zxz -b "$stage" "$work/deb" >/dev/null
mv "$work/deb" "$package"
echo "$package"
