#!/bin/sh
# Builds the programs of this folder into a directory: build.sh DIR
# As their users' programs are built: optimised, without frame pointers, with line tables.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"

flags="-O2 -g -fomit-frame-pointer -pthread -Wall -Wextra -Werror ${STACKS_CFLAGS:-}"
for library in near:libchains.so late:liblate.so; do
	${CC:-cc} $flags -fPIC -shared "-DPREFIX=${library%%:*}" -Wl,-soname,"${library#*:}" -o "${library#*:}" "$here/library.c"
done
${CC:-cc} $flags -o chains-c "$here/chains.c" -L. -lchains -Wl,-rpath,"\$ORIGIN" -ldl
${CXX:-c++} $flags -std=c++17 -o chains-cc "$here/chains.cc" -L. -lchains -Wl,-rpath,"\$ORIGIN" -ldl
rustc --edition 2021 -O -g -D warnings --crate-name chains -o chains-rs "$here/chains.rs"
