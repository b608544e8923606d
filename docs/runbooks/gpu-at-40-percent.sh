#!/bin/sh
# A GPU is at 40 %: why?
#
# Exit status, as in README.md:
#   0       no GPU was idle for more than --idle percent of the time
#   10      cannot be told: no GPU data, lost events, or nothing explains the idle time
#   11..23  the class of what it waited for most: 11 neighbour, 12 quota, 13 crowded, 14 machine, 15 input,
#           16 output, 17 cuda, 18 code, 19 lock, 20 peer, 21 device, 22 demand, 23 held
#   1       failed; 2 wrong usage; 77 this machine or user cannot
# shellcheck disable=SC2016 # programs of jq
set -eu

usage() {
	cat <<'END'
usage: gpu-at-40-percent.sh [-d DUR] [--idle PERCENT] [--gpu N] PID | --container ID | --cgroup PATH | -i FILE | -- CMD...

  -d DUR          record for so long (default 10s; of CMD all of it)
  --idle PERCENT  so much idle time is fine (default 20)
  --gpu N         only this GPU; without it, the one that was idle for longest of those idle for more
  -i FILE         read this recording instead

examples:
  gpu-at-40-percent.sh 4711
  gpu-at-40-percent.sh -d 30s --container 9e4f1c
  OUT=/tmp/case-17 gpu-at-40-percent.sh -- python3 train.py
END
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"

duration=
idle=20
gpu=
input=
while [ $# -gt 0 ]; do
	case $1 in
	-d) need_value "$1" $# && duration=$2 ;;
	--idle) need_value "$1" $# && need_percent "$1" "$2" && idle=$2 ;;
	--gpu) need_value "$1" $# && need_number "$1" "$2" && gpu=$2 ;;
	-i) need_value "$1" $# && input=$2 ;;
	*) break ;;
	esac
	shift 2
done
if [ -n "$input" ]; then
	[ $# -eq 0 ] || wrong_usage "-i is a target already"
	need_file "$input"
else
	need_target "$@"
fi

begin
ended=
if [ -z "$input" ]; then
	input=$dir/gdiag.data
	record_target "$input" "$duration" "$@"
fi
report_to "$input" "$dir/report.json" ${gpu:+--gpu "$gpu"}
[ "$status" = 0 ] || ended=${ended:-the recording is cut or damaged}
# Where nothing is known of the GPU, what the threads did is all there is.
"$GDIAG" sched --json -i "$input" >"$dir/sched.json" 2>/dev/null || : >"$dir/sched.json"
finish "$(query --slurpfile sched "$dir/sched.json" --argjson most "$idle" --arg ended "$ended" '
	include "lib";
	[why_not] as $doubts
	# One that was used for longer may have been idle for longer, and a smaller part of it.
	| ([.gpus[] | select(.idle_ns != null and .window_ns > 0)]
		| max_by([.idle_ns * 100 > $most * .window_ns, .idle_ns])) as $gpu
	| (if $doubts != [] then verdict("cannot-tell"; $doubts[0])
		elif $gpu.idle_ns * 100 <= $most * $gpu.window_ns then
			if $ended != "" then verdict("cannot-tell"; $ended + "; until then the GPU was busy")
			else verdict("fine"; "no GPU was idle for more than \($most) %") end
		else $gpu.causes[0] as $first
		| if $first == null then verdict("cannot-tell"; "the idle time has no cause")
			else verdict($first.id | class;
				"GPU \($gpu.index) was idle for \($gpu.idle_ns / $gpu.window_ns | percent) of the time, most of all: \($first.id)") end
		end),
	(.gpus[] | gpu_line),
	(select($doubts != []) | $sched[] | thread_lines),
	($gpu | select(. != null) | select(.causes != [] and .idle_ns * 100 > $most * .window_ns) | cause_lines),
	(select($ended != "") | "note: \($ended)"),
	warnings
' "$dir/report.json")"
