#!/bin/sh
# Runs gdiag on an old glibc, that of Debian 11, 2.31, unpacked into a temporary directory, and loads the shim into
# a program there.
#
#   tests/old_glibc.sh            GDIAG=PATH: not the gdiag of target/release, but say that of a tarball
#
# Run by hand: it downloads four packages. Where that cannot be, it says so and ends with 77.
#
# gdiag must report recordings as approved and, as root, record. Then the shim:
# 2.31 still has dlopen and threads in libraries of their own, and no function fstat. What it has and 2.17
# has not, and the shim refers to weakly, a second copy of the shim does not find. Each copy is loaded
# twice: left dormant, and collecting by a driver and a libcupti that do nothing.
set -eu

skip() {
	echo "skipped: $*" >&2
	exit 77
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
[ "$(uname -m)" = x86_64 ] || skip "the shim is linked for an old glibc on x86-64 only"
for tool in apt-get dpkg-deb flock cc; do
	command -v "$tool" >/dev/null || skip "needs $tool"
done

gdiag=$(realpath "${GDIAG:-target/release/gdiag}")
"$gdiag" shim install "$dir/shim" >/dev/null
shim=$(echo "$dir"/shim/*.so)
data=$(realpath "$(dirname "$0")")/data

keys=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$dir/state/lists/partial" "$dir/cache/archives/partial" "$dir/packages" "$dir/root"
echo "deb [arch=amd64 signed-by=$keys] http://deb.debian.org/debian bullseye main" >"$dir/sources"
: >"$dir/status"
apt() {
	apt-get -qq -o APT::Architecture=amd64 -o APT::Sandbox::User= -o Acquire::Languages=none \
		-o Dir::Etc::SourceList="$dir/sources" -o Dir::Etc::SourceParts=- -o Dir::State="$dir/state" \
		-o Dir::State::Status="$dir/status" -o Dir::Cache="$dir/cache" "$@"
}
apt update >"$dir/log" 2>&1 || skip "no package lists: $(tail -1 "$dir/log")"
(cd "$dir/packages" && apt download libc6 libgcc-s1 libcrypt1 perl-base) >"$dir/log" 2>&1 ||
	skip "no packages: $(tail -1 "$dir/log")"
for package in "$dir"/packages/*.deb; do
	dpkg-deb -x "$package" "$dir/root"
done

lib=$dir/root/lib/x86_64-linux-gnu
usr=$dir/root/usr/lib/x86_64-linux-gnu
old() { "$lib/ld-linux-x86-64.so.2" --library-path "$lib:$usr" "$@"; }

echo "$gdiag:"
for recording in launch stacks attached; do
	COLUMNS=80 old "$gdiag" report --gaps 3 -i "$data/$recording.data" </dev/null | cmp - "$data/$recording.txt"
done
echo "reports as approved"
if [ "$(id -u)" = 0 ] && [ -e /sys/kernel/btf/vmlinux ]; then
	old "$gdiag" record -o "$dir/host.data" -- true
	old "$gdiag" report -i "$dir/host.data" --json | grep -q '"schema": "gdiag.report/1"'
fi

# Names of the same length, found nowhere.
sed 's/\x00gettid\x00/\x00gettiX\x00/; s/\x00statx\x00/\x00statX\x00/; s/\x00getrandom\x00/\x00getrandoX\x00/
	s/__cxa_thread_atexit_impl\x00/__cxa_thread_atexit_impX\x00/' "$shim" >"$dir/as-on-2.17.so"
hidden=$(cmp -l "$shim" "$dir/as-on-2.17.so" | wc -l)
if [ "$hidden" -lt 4 ]; then
	echo "$shim: $hidden names hidden instead of 4" >&2
	exit 1
fi

mkdir -p "$dir/toolkit/extras/CUPTI/lib64"
cc -shared -fPIC -nostdlib -o "$dir/toolkit/extras/CUPTI/lib64/libcupti.so.13" -x c - <<'C'
int cuptiGetVersion(unsigned int *version) { *version = 130000; return 0; }
int cuptiActivityRegisterCallbacks(void *request, void *complete) { return 0; }
int cuptiActivityEnable(int kind) { return 0; }
int cuptiActivityDisable(int kind) { return 0; }
int cuptiActivityFlushAll(unsigned int flag) { return 0; }
int cuptiActivityGetNextRecord(void *buffer, unsigned long valid, void **record) { return 12; }
C
echo 'int cuDriverGetVersion(int *version) { *version = 13000; return 0; }' |
	cc -shared -fPIC -nostdlib -o "$dir/libcuda.so.1" -x c -

cat >"$dir/program.pl" <<'PERL'
use strict;
use DynaLoader;
my ($driver, $path, $expected) = @ARGV;
DynaLoader::dl_load_file($driver, 0) or die DynaLoader::dl_error(), "\n";
my $library = DynaLoader::dl_load_file($path, 0) or die DynaLoader::dl_error(), "\n";
my $entry = DynaLoader::dl_find_symbol($library, "InitializeInjection") or die "no entry\n";
DynaLoader::dl_install_xsub("main::inject", $entry);
inject();
sub lines { open(my $file, "<", shift) or return (); return <$file>; }
my $deadline = time + 30;
until (grep { "@{[lines($_)]}" eq "gdiag-shim\n" } glob("/proc/self/task/*/comm")) {
    die "its thread never came up\n" if time > $deadline;
    select(undef, undef, undef, 0.01);
}
my @maps = lines("/proc/self/maps");
my ($control) = map { m{^([0-9a-f]+)-.*/memfd:gdiag-shim} ? hex($1) : () } @maps or die "no shared memory\n";
# `Control::state`.
open(my $memory, "<:raw", "/proc/self/mem") or die;
sysseek($memory, $control + 36, 0) && sysread($memory, my $state, 4) == 4 or die "cannot read the state\n";
unpack("V", $state) == $expected or die "in state @{[unpack('V', $state)]} instead of $expected\n";
my ($libc) = map { m{/(libc[-.][^/]+)$} ? $1 : () } @maps;
print $expected == 2 ? "collects" : "is dormant", " on $libc";
PERL

for copy in "$shim" "$dir/as-on-2.17.so"; do
	for state in 1 2; do
		echo "$copy:"
		# The lock is gdiag's sign of life.
		CUDA_HOME=$dir/toolkit CUDA_INJECTION64_PATH=$copy GDIAG_SHIM_START=$((state - 1)) \
			flock "$copy" "$lib/ld-linux-x86-64.so.2" --library-path "$lib:$usr" \
			"$dir/root/usr/bin/perl" -I "$usr/perl-base" "$dir/program.pl" "$dir/libcuda.so.1" "$copy" "$state"
	done
done
