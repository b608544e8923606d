# shellcheck shell=sh
# shellcheck disable=SC2034,SC2154 # used there, and set there
# What the runbooks share: options, recording, cleaning up, and exit statuses. README.md has the statuses.
# A runbook says who it is by usage(), and sources this.

GDIAG=${GDIAG:-gdiag}
JQ=${JQ:-jq}
me=$(basename "$0")
# A job that is run here (--) must not take this for its own.
out=${OUT:-}
unset OUT

say() { printf '%s: %s\n' "$me" "$*" >&2; }

fail() {
	say "$*"
	exit 1
}

cannot() {
	say "$*"
	exit 77
}

wrong_usage() {
	say "$*"
	usage >&2
	exit 2
}

# The value of option $1, of which $2 arguments are left.
need_value() { [ "$2" -ge 2 ] || wrong_usage "$1 needs a value"; }

# A whole number, of option $1.
need_number() {
	case $2 in
	# With a zero before it, a number is octal for sh and none for jq.
	'' | *[!0-9]* | 0?* | ??????????*) wrong_usage "$1 takes a whole number, not '$2'" ;;
	esac
}

need_percent() {
	need_number "$1" "$2"
	[ "$2" -le 100 ] || wrong_usage "$1 takes a percentage, not '$2'"
}

need_pid() {
	case $1 in
	'' | *[!0-9]* | ??????????*) wrong_usage "'$1' is no process; give its number" ;;
	esac
}

need_file() {
	[ -f "$1" ] || fail "there is no recording '$1'"
	[ -r "$1" ] || fail "the recording '$1' cannot be read"
}

# One target: a pid, --container ID, --cgroup PATH, or -- and a command.
need_target() {
	case ${1:-} in
	'') wrong_usage "what is to be looked at?" ;;
	--) [ $# -ge 2 ] || wrong_usage "-- needs a command" ;;
	--container | --cgroup)
		[ $# -ge 2 ] || wrong_usage "$1 needs a value"
		[ $# -eq 2 ] || wrong_usage "only one target, please"
		;;
	-*) wrong_usage "there is no option '$1'" ;;
	*)
		need_pid "$1"
		[ $# -eq 1 ] || wrong_usage "only one target, please"
		;;
	esac
}

# A place for recordings and JSON, removed at the end unless $OUT names one; and what is needed to run.
begin() {
	command -v "$JQ" >/dev/null 2>&1 || cannot "this needs jq, and there is none (apt install jq, or JQ=/path/to/jq)"
	command -v "$GDIAG" >/dev/null 2>&1 || cannot "there is no gdiag on the PATH (GDIAG=/path/to/gdiag)"
	child=
	# Not one of the environment: clean() removes it.
	dir=
	trap 'clean' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	if [ -n "$out" ]; then
		# Recordings are for whoever made them.
		(umask 077 && mkdir -p -- "$out") || fail "cannot make the directory '$out'"
		out=$(CDPATH='' cd -- "$out" && pwd) || fail "cannot use the directory '$out'"
		dir=$out
	else
		dir=$(mktemp -d "${TMPDIR:-/tmp}/gdiag-runbook.XXXXXX") || fail "cannot make a temporary directory"
	fi
}

# Also on the way out of a signal: then a recording is still going on.
clean() {
	trap '' HUP INT TERM
	if [ -n "$child" ]; then
		kill "$child" 2>/dev/null || :
		wait "$child" || :
	fi
	before_leaving
	[ -n "$out" ] || [ -z "$dir" ] || rm -rf -- "$dir"
}

# A runbook that leaves something else behind has its own.
before_leaving() { :; }

# Runs a command so that a signal to this script ends both at once; its status is in $status.
run() {
	"$@" </dev/null &
	child=$!
	status=0
	wait "$child" || status=$?
	child=
}

# What gdiag record says of recording $1, by $status.
check_recorded() {
	[ ! -s "$1" ] || return 0
	case $status in
	2 | 77) exit "$status" ;;
	3) fail "the target was never seen" ;;
	*) fail "nothing was recorded (gdiag record ended with status $status)" ;;
	esac
}

# Records to $1, for $2, the target that comes after; $2 may be empty for a command, which is then awaited.
# In $ended is why that was shorter than asked for.
record_target() {
	file=$1
	for_time=$2
	shift 2
	ended=
	[ ! -e "$file" ] || mv -f -- "$file" "$file.old"
	case $1 in
	--)
		say "recording the command${for_time:+, for $for_time at most}"
		# In the foreground: Ctrl-C is for the command, too.
		status=0
		"$GDIAG" record -q -o "$file" ${for_time:+-d "$for_time"} "$@" >&2 || status=$?
		[ "$status" = 0 ] || ended="the command ended with status $status"
		;;
	--container | --cgroup)
		say "recording $1 $2 for ${for_time:=10s}"
		run "$GDIAG" record -q -o "$file" -d "$for_time" "$1" "$2"
		;;
	*)
		say "recording process $1 for ${for_time:=10s}"
		run "$GDIAG" record -q -o "$file" -d "$for_time" -p "$1"
		if is_gone "$1"; then ended="process $1 ended meanwhile"; fi
		;;
	esac
	check_recorded "$file"
}

is_gone() {
	# The name of a process may contain anything, and has no newline here.
	case $(sed -n 's/^State:[[:blank:]]*//p' "/proc/$1/status" 2>/dev/null) in
	'' | Z* | X*) return 0 ;;
	esac
	return 1
}

# The report of recording $1, as JSON in $2; $status is 1 if the recording is not whole.
report_to() {
	from=$1
	to=$2
	shift 2
	status=0
	"$GDIAG" report --json -i "$from" "$@" >"$to" || status=$?
	# 1 is also for a recording that was cut: that is in its warnings.
	if [ "$status" -gt 1 ] || [ ! -s "$to" ]; then
		fail "there is no report of '$from' (gdiag report ended with status $status)"
	fi
}

# jq with what is in lib.jq, which names from outside pass on their way to a terminal. All of the answer, or none.
query() {
	answer=$("$JQ" -r -L "$here" "$@") || fail "jq ended with status $?"
	printf '%s\n' "$answer"
}

# Prints $1, whose first line is "verdict: STATUS CLASS: ...", and ends with that status.
finish() {
	code=${1#verdict: }
	code=${code%% *}
	case $code in
	'' | *[!0-9]*) fail "no verdict came out of it" ;;
	esac
	# The status is the verdict, whether anybody reads the rest or not.
	trap '' PIPE
	{
		printf '%s\n' "$1"
		[ -z "$out" ] || printf 'kept: %s\n' "$out"
	} 2>/dev/null || :
	exit "$code"
}
