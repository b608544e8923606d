#!/bin/sh
# A gate for CI: does the GPU have to wait more than it may?
#
# Exit status, as in README.md:
#   0   all assertions hold
#   10  cannot be told: no GPU data, lost events, or a cut recording; never taken for holding
#   32  gate: an assertion does not hold
#   1   failed, also when the command did; 2 wrong usage; 77 this machine or user cannot
# shellcheck disable=SC2016 # programs of jq
set -eu

usage() {
	cat <<'END'
usage: gate.sh [--assert EXPR]... [--tries N] [-d DUR] -i FILE | -- CMD...

  --assert EXPR  what has to hold, as in gdiag-report(1) (default idle<20%)
  --tries N      run CMD up to N times, on a machine that others use, too: once has to be right (default 1)
  -d DUR         record the first DUR of CMD only
  -i FILE        this recording

examples:
  gate.sh -- python3 train.py --steps 200
  gate.sh --assert 'idle<15%' --assert 'cause(host.throttled)<1%' --tries 3 -- ./bench
  gate.sh --assert 'longest-gap<50ms' -i nightly.data
END
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"

line='
'
asserts=
tries=1
duration=
input=
while [ $# -gt 0 ]; do
	case $1 in
	--assert) need_value "$1" $# && asserts="$asserts--assert$line$2$line" ;;
	--tries) need_value "$1" $# && need_number "$1" "$2" && tries=$2 ;;
	-d) need_value "$1" $# && duration=$2 ;;
	-i) need_value "$1" $# && input=$2 ;;
	*) break ;;
	esac
	shift 2
done
[ -n "$asserts" ] || asserts="--assert${line}idle<20%$line"
if [ -n "$input" ]; then
	[ $# -eq 0 ] || wrong_usage "-i is a target already"
	need_file "$input"
else
	[ "${1:-}" = -- ] || wrong_usage "a recording (-i) or a command (--), please"
	need_target "$@"
fi

# gdiag report of recording $1 with all assertions.
report_with_assertions() {
	set -f
	IFS=$line
	# shellcheck disable=SC2086 # each line is an argument
	"$GDIAG" report --json -i "$1" $asserts
}

begin
# A typing error is to be found before CMD runs for an hour.
status=0
(report_with_assertions /dev/null) >/dev/null 2>"$dir/complaint" || status=$?
if [ "$status" = 2 ]; then
	cat "$dir/complaint" >&2
	exit 2
fi

try=0
while :; do
	try=$((try + 1))
	ended=
	if [ -z "$input" ] || [ "$try" -gt 1 ]; then
		input=$dir/gdiag.data
		record_target "$input" "$duration" "$@"
		[ -z "$ended" ] || fail "$ended: that passes no gate"
	fi
	status=0
	(report_with_assertions "$input") >"$dir/report.json" || status=$?
	case $status in
	0 | 1 | 5) [ -s "$dir/report.json" ] || fail "there is no report of '$input'" ;;
	*) fail "there is no report of '$input' (gdiag report ended with status $status)" ;;
	esac
	verdict=$(query --argjson status "$status" '
		include "lib";
		def value: if .value == null then "-" elif .unit == "share" then .value | percent
			elif .unit == "ns" then .value | length_of_time else .value end;
		def assertion: "\(.text): \(if .gpu == null then "" else "GPU \(.gpu) " end)\(value)";

		[why_not] as $doubts
		| [.asserts[] | select(.holds == false)] as $failed
		| [.asserts[] | select(.holds == null)] as $untold
		| (if $failed != [] then verdict("gate"; "\($failed | length) of \(.asserts | length) assertions do not hold")
			elif $untold != [] then verdict("cannot-tell"; $doubts[0] // "there is no value to compare")
			elif $doubts != [] then verdict("cannot-tell"; $doubts[0])
			elif $status != 0 then verdict("cannot-tell"; "the recording is cut or damaged")
			else verdict("fine"; "all assertions hold") end),
		($failed[] | "fails: \(assertion)"), ($untold[] | "unknown: \(assertion)"),
		(.asserts[] | select(.holds) | "holds: \(assertion)"),
		(.gpus[] | gpu_line),
		(select($failed != []) | [.gpus[] | select(.causes != [])] | max_by(.idle_ns) | select(. != null) | cause_lines),
		warnings
	' "$dir/report.json")
	case $verdict in
	'verdict: 0 '*) break ;;
	esac
	if [ $# -eq 0 ] || [ "$try" -ge "$tries" ]; then break; fi
	say "try $try of $tries: ${verdict%%"$line"*}"
done
finish "$verdict"
