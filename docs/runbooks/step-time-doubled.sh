#!/bin/sh
# A step takes longer than with the last release: what became slower?
#
# Compares two recordings of different length, or a stored one with what runs now. How many steps are in each is not
# known, but how many more there are in one: most kernels run a fixed number of times a step.
#
# Exit status, as in README.md:
#   0       a step takes no longer (by --percent), or less
#   10      cannot be told: no GPU data, lost events, or no kernel is in both recordings
#   11..23  a step takes longer, most of all because the GPU waits longer, for a cause of this class: 11 neighbour,
#           12 quota, 13 crowded, 14 machine, 15 input, 16 output, 17 cuda, 18 code, 19 lock, 20 peer, 21 device,
#           22 demand, 23 held
#   30      work: most of all because the GPU works longer for it
#   1       failed; 2 wrong usage; 77 this machine or user cannot
# shellcheck disable=SC2016 # programs of jq
set -eu

usage() {
	cat <<'END'
usage: step-time-doubled.sh [-d DUR] [--percent N] [--gpu N] OLD NEW
       step-time-doubled.sh [-d DUR] [--percent N] [--gpu N] OLD PID | --container ID | --cgroup PATH | -- CMD...

  OLD, NEW     recordings; instead of NEW a target that is recorded now
  -d DUR       record for so long (default 10s; of CMD all of it)
  --percent N  so much longer is no change (default 10)
  --gpu N      only this GPU

examples:
  step-time-doubled.sh release-1.data release-2.data
  step-time-doubled.sh baseline.data 4711
  step-time-doubled.sh baseline.data -- python3 train.py
END
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"

duration=
percent=10
gpu=
while [ $# -gt 0 ]; do
	case $1 in
	-d) need_value "$1" $# && duration=$2 ;;
	--percent) need_value "$1" $# && need_number "$1" "$2" && percent=$2 ;;
	--gpu) need_value "$1" $# && need_number "$1" "$2" && gpu=$2 ;;
	-*) wrong_usage "there is no option '$1'" ;;
	*) break ;;
	esac
	shift 2
done
[ $# -ge 2 ] || wrong_usage "two recordings, or a recording and a target, please"
old=$1
new=
shift
case $1 in
-*) need_target "$@" ;;
*[!0-9]*)
	[ $# -eq 1 ] || wrong_usage "only one OLD and one NEW, please"
	new=$1
	;;
*) need_target "$@" ;;
esac
need_file "$old"
[ -z "$new" ] || need_file "$new"

begin
ended=
if [ -z "$new" ]; then
	new=$dir/gdiag.data
	# Before it could become the file to be compared with.
	report_to "$old" "$dir/old.json" ${gpu:+--gpu "$gpu"}
	record_target "$new" "$duration" "$@"
else
	report_to "$old" "$dir/old.json" ${gpu:+--gpu "$gpu"}
fi
report_to "$new" "$dir/new.json" ${gpu:+--gpu "$gpu"}
finish "$(query -s --argjson percent "$percent" --arg ended "$ended" '
	include "lib";
	def sum: add // 0;
	def median: sort | .[(length - 1) / 2 | floor];
	# All GPUs together: what a step of the job takes of each.
	def sums: {
		window: ([.gpus[].window_ns] | sum), busy: ([.gpus[].busy_ns] | sum),
		causes: ([.gpus[].causes[]] | group_by(.id) | map({id: .[0].id, fix: .[0].fix, ns: (map(.ns) | sum), by: map(.by[])})),
		kernels: (reduce .kernels[] as $kernel ({}; .[$kernel.name] = $kernel))
	};
	def signed: if . < 0 then "-\(-. | percent)" else "+\(percent)" end;

	.[0] as $a | .[1] as $b
	| [($a | why_not | "of the old recording: " + .), ($b | why_not | "of the new recording: " + .)] as $doubts
	| if $doubts != [] then verdict("cannot-tell"; $doubts[0]), (.[] | gpu_line), ([.[] | warnings] | unique[])
	else
		($a | sums) as $old | ($b | sums) as $new
		# How many times the steps of the old recording are in the new one: so many times a usual kernel ran.
		| [$old.kernels[] | .count as $before | $new.kernels[.name] // empty | select($before >= 5 and .count >= 5) | .count / $before] as $ratios
		| if $ratios == [] then
			verdict("cannot-tell"; "no kernel is in both recordings often enough to tell how many steps there are")
		else
			($ratios | median) as $steps
			| ($new.window / $steps / $old.window) as $times
			# What each takes of a step, more than before, as a share of the old step.
			| [($new.causes + ($old.causes | map(.ns = 0)) | group_by(.id)[] | max_by(.ns)) as $now
				| ([$old.causes[] | select(.id == $now.id).ns] | sum) as $before
				| {id: $now.id, fix: $now.fix, by: $now.by, more: (($now.ns / $steps - $before) / $old.window)}]
			as $causes
			| (($new.busy / $steps - $old.busy) / $old.window) as $work
			| ($causes | max_by(.more)) as $first
			| [$new.kernels[] | {name, more: ((.total_ns / $steps - ($old.kernels[.name].total_ns // 0)) / $old.window)}] as $kernels
			| "a step takes \($times * 100 | tenths) % of the time that it took" as $says
			| (if ($times - 1) * 100 < $percent then
					if $ended != "" and ($b.recording.end_ns - $b.recording.start_ns) < 1e9 then verdict("cannot-tell"; $ended)
					else verdict("fine"; $says) end
				elif $first == null or $work >= $first.more then verdict("work"; $says + ", most of all because the GPU works longer")
				else verdict($first.id | class; $says + ", most of all for \($first.id)") end),
			"change: \($work | signed) busy",
			($causes | sort_by(-(.more | fabs))[:4][] | select((.more | fabs) >= 0.01) | "change: \(.more | signed) \(.id)"),
			(if ($times - 1) * 100 < $percent then empty
			elif $first == null or $work >= $first.more then
				($kernels | sort_by(-.more)[:3][] | select(.more >= 0.01) | "kernel: \(.more | signed) \(.name | clean | .[:120])")
			else
				($first.by | together[:3][] | "who: \(blamed), \(.ns | length_of_time)"),
				([$b.gpus[].gaps[].parts[] | select(.cause == $first.id)] | where | "where: \(.)"),
				(select($first.fix != "") | "fix: \($first.fix)")
			end),
			"steps: \($steps * 100 | tenths) % of those of the old recording, by \($ratios | length) kernels",
			($a | .gpus[] | "old-" + gpu_line), ($b | .gpus[] | "new-" + gpu_line),
			(select($ended != "") | "note: \($ended)"),
			([.[] | warnings] | unique[])
		end
	end
' "$dir/old.json" "$dir/new.json")"
