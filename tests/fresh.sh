#!/bin/sh
# A stranger's first hour: a minimal Debian in a directory, and README's commands typed into it, timed.
#
#   tests/fresh.sh [-m MIRROR] [SUITE [STEP...]]
#
#   SUITE      what debootstrap calls the release: bookworm (default), trixie, bullseye, noble, ...
#   -m MIRROR  where it comes from, default http://deb.debian.org/debian
#
# and after `git clone` any of these steps, by default demo alone:
#
#   setup      make setup: only what building takes
#   demo       make demo, make, make install, and the installed gdiag records and reports
#   user       a user without root: cargo fetch, make without a network, sudo make install, sudo make uninstall
#   test       make test; with GDIAG_REQUIRE=bpf,simgpu nothing may be skipped
#
# What it clones is the commit that is checked out here. It needs root and debootstrap, 6 GB, and a host that can
# record. Beyond `git make ca-certificates` nothing is put into the root by hand, except how this machine reaches
# the network: proxies, apt's settings for them, and the certificates that the environment names.
#
# All of it is in one temporary directory (of TMPDIR), which is gone at the end, also when interrupted. The root is
# mounted in a mount namespace of its own: whatever ends this script takes the mounts along. The log stays, in
# target/fresh/SUITE.log; the last lines are a table.
set -eu
cd "$(dirname "$0")/.."

fail() {
	echo "fresh: $*" >&2
	exit 1
}

mirror=http://deb.debian.org/debian
while getopts m: option; do
	case $option in
	m) mirror=$OPTARG ;;
	*) sed -n '/^#   tests/,/^#   test /s/^# *//p' tests/fresh.sh >&2 && exit 2 ;;
	esac
done
shift $((OPTIND - 1))
suite=${1:-bookworm}
[ $# = 0 ] || shift
[ $# -gt 0 ] || set -- demo
for steps; do
	case $steps in
	setup | demo | user | test) ;;
	*) fail "no such step: $steps" ;;
	esac
done

# Outside: the directory, and what remains of it.
if [ -z "${GDIAG_FRESH_DIR:-}" ]; then
	[ "$(id -u)" = 0 ] || fail "needs root"
	for tool in debootstrap unshare chroot git; do
		command -v $tool >/dev/null || fail "needs $tool"
	done
	GDIAG_FRESH_DIR=$(mktemp -d --tmpdir gdiag-fresh.XXXXXX)
	export GDIAG_FRESH_DIR
	inside=
	# What still runs in the root, by its root directory; then the tree, which has no mounts on this side.
	clean() {
		trap '' INT TERM HUP
		[ -z "$inside" ] || kill "$inside" 2>/dev/null || :
		for process in /proc/[0-9]*; do
			case $(readlink "$process/root" 2>/dev/null) in
			"$GDIAG_FRESH_DIR"/*) kill -KILL "${process#/proc/}" 2>/dev/null || : ;;
			esac
		done
		[ -z "$inside" ] || wait "$inside" 2>/dev/null || :
		rm -rf --one-file-system "$GDIAG_FRESH_DIR"
	}
	trap clean EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 129' HUP
	mkdir -p target/fresh
	# In the background, so that a signal is dealt with at once.
	unshare --mount --propagation private tests/fresh.sh -m "$mirror" "$suite" "$@" >"target/fresh/$suite.log" 2>&1 &
	inside=$!
	status=0
	wait "$inside" || status=$?
	inside=
	sed -n '/^== /,$p' "target/fresh/$suite.log"
	[ "$status" = 0 ] || fail "ended with $status; the log is target/fresh/$suite.log"
	exit 0
fi

# Inside the mount namespace.
root=$GDIAG_FRESH_DIR/root
times=$GDIAG_FRESH_DIR/times
log=$GDIAG_FRESH_DIR/step
status=0

# Prints what a command prints, and leaves it in $log with the seconds that had passed. The status is the command's.
stamped() {
	begin=$(date +%s)
	ended=0
	{
		"$@" 2>&1 </dev/null && : >"$GDIAG_FRESH_DIR/ok" || :
		times >"$GDIAG_FRESH_DIR/cpu"
	} | while IFS= read -r line; do
		printf '%s\n' "$line"
		printf '%d %s\n' $(($(date +%s) - begin)) "$line" >&3
	done 3>"$log"
	echo "$(($(date +%s) - begin)) END" >>"$log"
	rm "$GDIAG_FRESH_DIR/ok" 2>/dev/null || ended=1
	return $ended
}

# NAME COMMAND...: one row of the table.
step() {
	name=$1
	shift
	echo
	echo "\$ $name"
	result=ok
	stamped "$@" || result=FAILED status=1
	took=$(sed -n '$s/ .*//p' "$log")
	# The second line is that of the children: 1m2.3s for each of user and system.
	cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, t, "[ms]"); sum += t[1] * 60 + t[2] } print int(sum + 0.5) }' "$GDIAG_FRESH_DIR/cpu")
	printf '%6d s %6d s  %-6s  %s\n' "$took" "$cpu" "$result" "$name" >>"$times"
	[ "$result" = ok ] || tail -n 15 "$log"
}

# What the time of the last step went into, by what it said: setup's apt, cargo's downloads, compilers, the rest.
phases() {
	awk '
		function to(next_phase) { spent[phase] += $1 - since; since = $1; phase = next_phase }
		BEGIN { phase = "start" }
		$2 == "END" { to("end") }
		$2 == "setup:" && $3 == "installing" { to("apt") }
		$2 == "Updating" || $2 == "Downloading" || $2 == "Downloaded" { to("crates") }
		$2 == "Compiling" { to("compile") }
		/gpuload outside/ { to("record") }
		/gdiag report/ { to("report") }
		END {
			split("apt crates compile record report", order, " ")
			for (i = 1; i <= 5; i++) if (order[i] in spent) printf "%6d s                     of which %s\n", spent[order[i]], order[i]
		}' "$log" >>"$times"
}

# In the root, with the environment of a login and how the network is reached.
enter() {
	chroot "$root" /usr/bin/env -i HOME=/root TERM=dumb LANG=C.UTF-8 SHELL=/bin/sh DEBIAN_FRONTEND=noninteractive \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ${GDIAG_REQUIRE:+GDIAG_REQUIRE=$GDIAG_REQUIRE} \
		sh -c '. /etc/outside.sh; cd "$1" || exit; shift; exec "$@"' sh "$@"
}

# How this machine reaches the network.
outside() {
	mkdir -p "$root/etc/outside"
	: >"$root/etc/outside.sh"
	for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
		eval "value=\${$name:-}"
		[ -z "$value" ] || echo "export $name='$value'" >>"$root/etc/outside.sh"
	done
	for name in SSL_CERT_FILE GIT_SSL_CAINFO CURL_CA_BUNDLE CARGO_HTTP_CAINFO REQUESTS_CA_BUNDLE PIP_CERT; do
		eval "value=\${$name:-}"
		[ -f "$value" ] || continue
		cp -L "$value" "$root/etc/outside/$name.pem"
		echo "export $name=/etc/outside/$name.pem" >>"$root/etc/outside.sh"
	done
	# A cargo that is not told takes its own way to the system's certificates.
	if [ -n "${SSL_CERT_FILE:-}" ] && [ -z "${CARGO_HTTP_CAINFO:-}" ]; then
		echo "export CARGO_HTTP_CAINFO=/etc/outside/SSL_CERT_FILE.pem" >>"$root/etc/outside.sh"
	fi
	if [ -f "${CARGO_HOME:-$HOME/.cargo}/config.toml" ]; then
		mkdir -p "$root/root/.cargo"
		cp -L "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$root/root/.cargo/"
	fi
	apt-config dump 2>/dev/null | grep -iE '^Acquire::(.*Proxy|Check-|https::)' >"$root/etc/apt/apt.conf.d/90outside" || :
	cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || :
}

# The release as it is installed: with its updates.
sources() {
	case $mirror in
	*ubuntu*)
		for part in "" -updates -security; do echo "deb $mirror $suite$part main universe"; done
		;;
	*)
		echo "deb $mirror $suite main"
		case $suite in
		sid | unstable) ;;
		*)
			echo "deb $mirror $suite-updates main"
			echo "deb ${mirror%/debian}/debian-security $suite-security main"
			;;
		esac
		;;
	esac >"$root/etc/apt/sources.list"
}

mounts() {
	mount -t proc proc "$root/proc"
	mount --rbind /sys "$root/sys"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" # no service starts
	chmod 755 "$root/usr/sbin/policy-rc.d"
}

: >"$times"
step "debootstrap --variant=minbase $suite" debootstrap --variant=minbase "$suite" "$root" "$mirror"
[ "$status" = 0 ] || exit 1
outside
sources
mounts
git clone -q --bare --no-hardlinks . "$root/srv/gdiag.git"
step "apt-get install git make ca-certificates" enter / sh -c \
	'apt-get -q update && apt-get -q -y install --no-install-recommends git make ca-certificates'
step "git clone" enter /root git clone -q file:///srv/gdiag.git

setup() {
	step "make setup" enter /root/gdiag make setup
	phases
	step "tests/setup.sh features" enter /root/gdiag sh tests/setup.sh features
}

demo() {
	step "make demo" enter /root/gdiag make demo
	phases
	step "make" enter /root/gdiag make
	step "make install" enter /root/gdiag make install
	step "gdiag record -- target/simgpu/gpuload --inject lock" enter /root/gdiag \
		timeout 120 gdiag record -- target/simgpu/gpuload --inject lock
	step "gdiag report" enter /root/gdiag sh -c 'timeout 120 gdiag report >/tmp/report && head -n 12 /tmp/report'
	step "gdiag record -o host.data -- git log" enter /root/gdiag \
		timeout 120 gdiag record -o host.data -- git --no-pager log --oneline -5
}

user() {
	step "useradd, git clone" enter / sh -c 'useradd -m user && apt-get -q -y install --no-install-recommends sudo &&
		echo "user ALL=(ALL) NOPASSWD: ALL" >/etc/sudoers.d/user && git clone -q file:///srv/gdiag.git /home/user/gdiag && chown -R user: /home/user/gdiag'
	step "as a user: make setup, cargo fetch" enter /home/user/gdiag su user -c \
		'. /etc/outside.sh; make setup && PATH=$PWD/target/toolchain:$PATH cargo fetch --locked'
	step "as a user, without a network: make" enter /home/user/gdiag unshare --net su user -c make
	phases
	step "as a user: sudo make install" enter /home/user/gdiag su user -c 'sudo make install PREFIX=/opt/gdiag'
	step "the tree is still the user's" enter /home/user/gdiag sh -c '! find . ! -user user | grep .'
	step "as a user: sudo make uninstall" enter /home/user/gdiag su user -c 'sudo make uninstall PREFIX=/opt/gdiag'
	step "nothing is left" enter / sh -c '! find /opt/gdiag ! -type d | grep .'
}

tests() { step "make test" enter /root/gdiag make test; }

before=$(du -sxm "$root" | cut -f1)
for steps; do
	case $steps in
	setup) setup ;;
	demo) demo ;;
	user) user ;;
	test) tests ;;
	esac
	# What did not build is not tried again.
	[ "$status" = 0 ] || break
done
after=$(du -sxm "$root" | cut -f1)

echo
echo "== $suite, $(git rev-parse --short HEAD), $(nproc) CPUs, $(date -u +%F)"
echo "    time  CPU time"
cat "$times"
echo "  $before MB with the clone, $after MB in the end"
exit $status
