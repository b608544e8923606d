#!/bin/sh
# A service stalls every few seconds, or once a night: what do its stalls have in common, and is there a period?
#
# Keeps the last seconds in memory (gdiag start) and a recording of each moment in which a GPU was idle for too long.
#
# Exit status, as in README.md:
#   0       there was no stall in that time
#   10      cannot be told: no GPU data, lost events, or nothing explains the stalls
#   11..23  most stalls have one cause, of this class: 11 neighbour, 12 quota, 13 crowded, 14 machine, 15 input,
#           16 output, 17 cuda, 18 code, 19 lock, 20 peer, 21 device, 22 demand, 23 held
#   31      mixed: there were stalls, and no cause is that of most of them
#   1       failed; 2 wrong usage; 77 this machine or user cannot
# shellcheck disable=SC2016 # programs of jq
set -eu

usage() {
	cat <<'END'
usage: stalls-every-n-seconds.sh [-d TIME] [--over DUR] [--stalls N] PID | --container ID | --cgroup PATH

  -d TIME     watch for so long at most: 90s, 10m, 8h (default 60s)
  --over DUR  a stall is a GPU that is idle for longer (default 50ms)
  --stalls N  stop after so many (default 6)

examples:
  stalls-every-n-seconds.sh 4711
  OUT=/var/tmp/tonight stalls-every-n-seconds.sh -d 8h --over 1s --stalls 3 --container 9e4f1c
END
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"

most=60
over=50ms
window=11
stalls=6
while [ $# -gt 0 ]; do
	case $1 in
	-d)
		need_value "$1" $#
		case $2 in
		*m) scale=60 ;;
		*h) scale=3600 ;;
		*) scale=1 ;;
		esac
		number=${2%[smh]}
		need_number "$1" "$number"
		most=$((number * scale))
		;;
	--over)
		need_value "$1" $#
		over=$2
		# The memory has to hold a stall, with what was before: whole seconds, rounded up.
		number=${over%%[!0-9]*}
		need_number "$1" "$number"
		case $over in
		*us | *ns) ;;
		*ms) window=$((number / 1000 + 11)) ;;
		*h) window=$((number * 3600 + 3610)) ;;
		*m | *min) window=$((number * 60 + 70)) ;;
		*) window=$((number + 11)) ;;
		esac
		;;
	--stalls) need_value "$1" $# && need_number "$1" "$2" && stalls=$2 ;;
	*) break ;;
	esac
	shift 2
done
need_target "$@"
[ "$1" != -- ] || wrong_usage "a service has to run already"

name=runbook-$$
# shellcheck disable=SC2317 # clean() calls it
before_leaving() { "$GDIAG" stop --name "$name" >/dev/null 2>&1 || :; }

begin
# What an earlier run kept stays.
stalls_dir=$dir/stalls-$(date +%Y%m%d-%H%M%S)
(umask 077 && mkdir -- "$stalls_dir") || fail "cannot make a directory for the stalls"
case $1 in
-*) set -- "$1" "$2" ;;
*) set -- -p "$1" ;;
esac
status=0
"$GDIAG" start -q "$@" --name "$name" --window "${window}s" --snapshot-on "gap>$over" --snapshots "$((stalls + 4))" -o "$stalls_dir/stall" >&2 || status=$?
case $status in
0) ;;
2 | 77) exit "$status" ;;
*) fail "the flight recorder did not start" ;;
esac

say "watching for $most s at most, or until $stalls stalls of more than $over"
end=$(($(date +%s) + most))
lost=0
ended=
while [ "$(date +%s)" -lt "$end" ]; do
	sleep 1 &
	wait $!
	status=0
	"$GDIAG" stat --json --name "$name" >"$dir/stat.json" 2>/dev/null || status=$?
	# With its targets a recorder with events ends.
	if [ "$status" != 0 ]; then
		ended="the target ended meanwhile"
		break
	fi
	lost=$(query '.lost' "$dir/stat.json")
	if query '.ended' "$dir/stat.json" | grep -q true; then
		ended="the target ended meanwhile"
	fi
	seen=$(query '[.triggers[].fired] | add // 0' "$dir/stat.json")
	[ "$seen" -lt "$stalls" ] || break
done
# What is still in memory, too.
"$GDIAG" stop --name "$name" -o "$stalls_dir/stall.last" >/dev/null 2>&1 || :

for recording in "$stalls_dir"/stall.*; do
	case $recording in
	*.log | *.old | "$stalls_dir/stall.*") continue ;;
	esac
	[ ! -s "$recording" ] || report_to "$recording" "$stalls_dir/report.${recording##*.}.json" --min-gap "$over" --gaps all
done
set -- "$stalls_dir"/report.*.json
[ -f "$1" ] || fail "there is no recording${ended:+: $ended}"
finish "$(query -s --arg over "$over" --argjson most "$most" --argjson lost "$lost" --arg ended "$ended" '
	include "lib";
	def sum: add // 0;
	# What a gap is remembered by.
	def main_part:
		.parts | group_by(.cause) | max_by(map(.end_ns - .start_ns) | sum) | max_by(.end_ns - .start_ns);
	# Of the times between stalls: how long the period is, if each is a multiple of it.
	def period:
		sort as $times | $times[(length - 1) / 2 | floor] as $middle
		| select(length >= 3)
		| select(all($times[]; (. / $middle + 0.5 | floor) as $times_over
			| $times_over >= 1 and (. - $times_over * $middle | fabs) <= 0.2 * $middle))
		| $middle;

	. as $reports
	| [$reports[] | why_not] as $doubts
	| [$reports[] | select([why_not] == []) | .gpus[] | .index as $gpu
		| (reduce .causes[] as $cause ({}; .[$cause.id] = $cause.fix)) as $fixes
		| .gaps[] | . + {$gpu, main: main_part} | .fix = $fixes[.main.cause]]
	# The same gap may be in several recordings, and cut in some of them.
	| group_by(.gpu) | map(sort_by(.start_ns) | reduce .[] as $gap ([];
			if length == 0 or .[-1].end_ns <= $gap.start_ns then . + [$gap]
			elif .[-1].end_ns - .[-1].start_ns < $gap.end_ns - $gap.start_ns then .[:-1] + [$gap]
			else . end))
	| add // [] | sort_by(.start_ns) | . as $stalls
	| (group_by(.main.cause) | max_by([length, (map(.end_ns - .start_ns) | sum)])) as $common
	# One GPU tells when: all of a job stall together.
	| [(group_by(.gpu) | max_by(length) // [] | map(.start_ns)) as $starts
		| range(1; $starts | length) as $n | $starts[$n] - $starts[$n - 1]] as $between
	| (if $stalls == [] then
			if $doubts != [] then verdict("cannot-tell"; $doubts[0])
			elif $lost > 0 then verdict("cannot-tell"; "\($lost) events were lost, and no stall was seen")
			elif $ended != "" then verdict("cannot-tell"; $ended + ", without a stall until then")
			else verdict("fine"; "no GPU was idle for more than \($over) at a time, in \($most) s") end
		elif ($common | length) * 2 <= ($stalls | length) then
			verdict("mixed"; "\($stalls | length) stalls, and no cause is that of most of them")
		else verdict($common[0].main.cause | class; "\($common | length) of \($stalls | length) stalls: \($common[0].main.cause)") end),
	(select($stalls != [])
		| ($stalls | map(.end_ns - .start_ns) | "stalls: \(length), of \(min | length_of_time) to \(max | length_of_time)"),
		("(from \($between | min | length_of_time) to \($between | max | length_of_time) between them)" as $range
			| [$between | period] | if . != [] then "period: \(.[0] | length_of_time) \($range)"
			elif ($between | length) < 3 then "period: - (too few stalls to tell)"
			else "period: none \($range)" end),
		(group_by(.main.cause) | sort_by(-length)[]
			| "cause: \(.[0].main.cause) of \(length)",
				(group_by([.main.pid, .main.comm, .main.what]) | sort_by(-length)[:2][]
					| (.[0].main | "who: \(blamed)") + ", \(length) times"),
				([.[].parts[] | . as $part | select($part.stack != [])] as $parts
					| .[0].main.cause as $cause | [$parts[] | select(.cause == $cause)] | where | "where: \(.)"),
				(.[0].fix // "" | select(. != "") | "fix: \(.)"))),
	(select($ended != "") | "note: \($ended)"),
	(select($stalls != [] and $doubts != []) | "note: left out what cannot be told: \($doubts[0])"),
	([$reports[] | warnings] | unique[])
' "$@")"
