#!/bin/sh
# Installs what building and testing gdiag needs and this machine lacks, by apt.
#
#   tests/setup.sh build|test|lint|bench|kernels ...     does nothing, and asks for nothing, when all of it is there
#   tests/setup.sh features                 prints cargo's options for linking libelf here
set -eu
cd "$(dirname "$0")/.."

rust_min=88 # 1.88, as in Cargo.toml
target=${CARGO_TARGET_DIR:-target}
toolchain=$target/toolchain

have() { command -v "$1" >/dev/null 2>&1; }
say() { echo "setup: $*" >&2; }
fail() {
	say "$*"
	exit 1
}

root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif have sudo; then
		sudo "$@"
	else
		fail "cannot install anything without root or sudo; as root, run: $*"
	fi
}

updated=
apt_update() {
	[ -z "$updated" ] || return 0
	root apt-get update -q >&2 || fail "apt-get update failed: see the lines above"
	updated=1
}

# The version that apt would install; nothing when it knows no such package.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: *//p' | grep -v '(none)' || :; }

apt_install() {
	have apt-get || fail "needed here and missing: $* (Debian's names); this machine has no apt, so install them by hand"
	say "installing by apt: $*"
	apt_update
	for package; do
		[ -n "$(candidate "$package")" ] || fail "apt knows no package '$package' here; its package lists or sources are incomplete"
	done
	root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" >&2 ||
		fail "apt-get could not install: $*"
}

# A static library with its header, found by the compiler.
have_static() {
	echo 'int main(void) { return 0; }' |
		cc -include "$2" -x c - -o /dev/null -Wl,-Bstatic "-l$1" -Wl,-Bdynamic 2>/dev/null
}

# Debian's package is for its own interpreter.
have_protobuf() {
	for python in python3 /usr/bin/python3; do
		if "$python" -c 'import google.protobuf' 2>/dev/null; then return; fi
	done
	return 1
}

# Is this cargo there, and new enough?
cargo_ok() {
	minor=$("$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
	[ -n "$minor" ] && [ "$minor" -ge $rust_min ]
}

# Debian's 1.2.3 -> 2
minor_of() { candidate "$1" | sed -n 's/^\([0-9]*:\)\{0,1\}1\.\([0-9]*\)\..*/\2/p'; }
new_enough() {
	minor=$(minor_of "$1")
	[ -n "$minor" ] && [ "$minor" -ge $rust_min ]
}

# The suffixed or shadowed toolchain that was just installed goes first on the Makefile's PATH.
link_toolchain() {
	mkdir -p "$toolchain"
	for tool in cargo rustc rustdoc rustfmt cargo-fmt cargo-clippy clippy-driver; do
		[ ! -x "/usr/bin/$tool$1" ] || ln -sf "/usr/bin/$tool$1" "$toolchain/$tool"
	done
}

setup_cargo() {
	if cargo_ok cargo; then return; fi
	have apt-get || fail "cargo 1.$rust_min or newer is needed (https://rustup.rs)"
	apt_update
	if new_enough cargo; then
		apt_install ca-certificates cargo rustc
		suffix=
	elif new_enough cargo-web; then # Debian's newer toolchain, under the usual names
		apt_install ca-certificates cargo-web rustc-web
		suffix=
	else # Ubuntu's: cargo-1.89 and the like
		newest=$(apt-cache pkgnames cargo-1. | sed -n 's/^cargo-1\.\([0-9]*\)$/\1/p' | sort -n | tail -1)
		[ "${newest:-0}" -ge $rust_min ] ||
			fail "cargo 1.$rust_min or newer is needed and apt has none (https://rustup.rs)"
		apt_install ca-certificates "cargo-1.$newest" "rustc-1.$newest"
		suffix=-1.$newest
	fi
	# An old cargo of another origin can still be first on the PATH.
	if ! cargo_ok cargo; then link_toolchain "$suffix"; fi
	cargo_ok cargo || fail "cargo is still older than 1.$rust_min: $(command -v cargo || echo 'none on the PATH')"
}

# Debian 13 and Ubuntu 24.04 ship a libelf.a that needs more than it brings: gdiag is linked with the shared one there.
libelf_links() {
	printf '#include <libelf.h>\nint main(void) { return elf_begin(0, ELF_C_READ, 0) != 0; }\n' |
		cc -x c - -o /dev/null -Wl,-Bstatic -lelf -lz -Wl,-Bdynamic 2>/dev/null
}

setup_build() {
	missing=
	have cc || missing="$missing gcc libc6-dev"
	have c++ || missing="$missing g++"
	have python3 || missing="$missing python3"
	# Read exported timelines in tests.
	have protoc || missing="$missing protobuf-compiler"
	have_protobuf || missing="$missing python3-protobuf"
	have script || missing="$missing bsdutils"
	# The runbooks need one, and are read by the other.
	have jq || missing="$missing jq"
	have shellcheck || missing="$missing shellcheck"
	# The live view is tested in it.
	have tmux || missing="$missing tmux"
	# For the scenario with a peer in another network namespace.
	have ip || missing="$missing iproute2"
	have clang || missing="$missing clang"
	have llvm-strip || missing="$missing llvm"
	have pkg-config || missing="$missing pkg-config"
	have_static elf libelf.h || missing="$missing libelf-dev"
	have_static z zlib.h || missing="$missing zlib1g-dev"
	# shellcheck disable=SC2086 # a list of words
	[ -z "$missing" ] || apt_install $missing
	setup_cargo
}

# Completions and manual pages are tried in what people read and type them in.
setup_test() {
	missing=
	have fish || missing="$missing fish"
	have zsh || missing="$missing zsh"
	have mandoc || missing="$missing mandoc"
	# shellcheck disable=SC2086
	[ -z "$missing" ] || apt_install $missing
}

setup_lint() {
	have clang-format || apt_install clang-format
	setup_cargo
	if cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; then return; fi
	if have rustup; then
		rustup component add rustfmt clippy >&2 || fail "rustup could not add rustfmt and clippy"
	elif dpkg -s rustc-web >/dev/null 2>&1; then
		apt_install rustfmt-web rust-web-clippy
	elif [ -x "$toolchain/cargo" ]; then
		suffix=$(readlink "$toolchain/cargo" | sed 's,.*/cargo,,')
		apt_install "rustfmt$suffix" "rust$suffix-clippy"
		link_toolchain "$suffix"
	else
		apt_install rustfmt rust-clippy
	fi
}

setup_bench() {
	missing=
	have python3 || missing="$missing python3"
	have perf || missing="$missing linux-perf"
	have trace-cmd || missing="$missing trace-cmd"
	have runqlat || have runqlat-bpfcc || missing="$missing bpfcc-tools"
	# shellcheck disable=SC2086
	[ -z "$missing" ] || apt_install $missing
}

# Other kernels boot in it, with all that they need in their memory.
setup_kernels() {
	missing=
	have qemu-system-x86_64 || missing="$missing qemu-system-x86"
	busybox --list 2>/dev/null | grep -qx cpio || missing="$missing busybox-static"
	# shellcheck disable=SC2086
	[ -z "$missing" ] || apt_install $missing
}

PATH=$(mkdir -p "$toolchain" && cd "$toolchain" && pwd):$PATH
[ $# -gt 0 ] || fail "what for? build, test, lint, bench, kernels or features"
for what; do
	case $what in
	build) setup_build ;;
	test) setup_test ;;
	lint) setup_lint ;;
	bench) setup_bench ;;
	kernels) setup_kernels ;;
	features) libelf_links || echo --no-default-features ;;
	*) fail "unknown: $what (build, test, lint, bench, kernels or features)" ;;
	esac
done
