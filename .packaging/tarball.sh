#!/bin/sh
# What `make install` installs, as a directory that can be unpacked anywhere, with the documents.
# Run by `make tarball`; writes target/dist/gdiag-VERSION-MACHINE-linux.tar.gz.
set -eu
cd "$(dirname "$0")/.."
. .packaging/lib.sh

name=gdiag-$version-$(uname -m)-linux
stage=$target/dist/$name
rm -rf "$stage"
mkdir -p "$stage/bpf"
${MAKE:-make} -s install DESTDIR="$target/dist" PREFIX="/$name"

cp README.md CHANGELOG.md BENCHMARKS.md LICENSE "$stage/"
cp bpf/COPYING "$stage/bpf/"
cp -R docs "$stage/"
.packaging/licences.py >"$stage/LICENSES-THIRD-PARTY"
glibc=$(needed_glibc "$stage/bin/gdiag")
libraries=$(objdump -p "$stage/bin/gdiag" | sed -n 's/^ *NEEDED *//p' | grep -vE '^(ld-linux|libc|libdl|libpthread|libm|librt)' |
	sed '2,$s/^/, /' | tr -d '\n')
cat >"$stage/INSTALL" <<END
gdiag $version for Linux on $(uname -m). It needs glibc $glibc or newer, and $libraries.

bin/gdiag works where it is, and can be copied alone. To have it with its manual pages and
completions for everybody, as root in this directory:

    cp -R bin share /usr/local/
    cp share/fish/vendor_completions.d/gdiag.fish /etc/fish/completions/    # if you use fish

To remove it:

    cd /usr/local && rm -f bin/gdiag share/man/man1/gdiag*.1
    rm -f share/bash-completion/completions/gdiag share/zsh/site-functions/_gdiag
    rm -f share/fish/vendor_completions.d/gdiag.fish /etc/fish/completions/gdiag.fish

For yourself, without root: put this directory's bin into PATH. man finds the pages from there.
END
normalize "$stage"
tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner -C "$target/dist" -cf - "$name" |
	gzip -9n >"$stage.tar.gz"
rm -rf "$stage"
echo "$stage.tar.gz"
