#!/bin/sh
# A step takes longer than with the last release: what became slower?
#
# Compares two recordings of different length, or a stored one with what runs now, by what a step takes, or 1,000
# operations where no step is seen. gdiag-diff(1) says what a step is, and what is noise.
#
# Exit status, as in README.md:
#   0       a step takes no longer, beyond noise and --percent, or less
#   10      cannot be told: no GPU data, lost events, or too little was recorded
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

here=$(dirname -- "$(readlink -f -- "$0")")
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
	if [ -n "$out" ]; then
		# One that is kept in the same place moves aside.
		cp -p -- "$old" "$dir/old.part" || fail "cannot keep '$old' in '$out'"
		mv -f -- "$dir/old.part" "$dir/old.data"
		old=$dir/old.data
	fi
	new=$dir/gdiag.data
	record_target "$new" "$duration" "$@"
fi
status=0
"$GDIAG" diff --json ${gpu:+--gpu "$gpu"} "$old" "$new" >"$dir/diff.json" || status=$?
if [ "$status" -gt 1 ] || [ ! -s "$dir/diff.json" ]; then
	fail "there is no comparison of '$old' with '$new' (gdiag diff ended with status $status)"
fi
finish "$(query --argjson percent "$percent" --arg ended "$ended" '
	include "lib";
	def signed: if . < 0 then "-\(-. | percent)" else "+\(percent)" end;
	# Twice as many operations are rather two steps taken for one.
	def same_step: [.a.step_operations, .b.step_operations] | sort
		| .[0] != null and (.[0] == .[1] or .[1] % .[0] != 0);

	. as $diff
	| [.gpus[] | (if .per_step != null and same_step then .per_step + {unit: "a step takes", old: "the old step time"}
			else .per_1000_operations // {} | . + {unit: "1,000 operations take", old: "the old time of 1,000 operations"} end) as $work
		| . + {$work, ratio: ($work.time_ns | if . == null or .a == null or .a == 0 or .b == null then null else .b / .a end)}]
	# The slowest of those that have changed, if any has.
	| max_by([.work.time_ns.changed == true and .ratio > 1, .ratio // 0]) as $gpu
	| (if $diff.a.lost > 0 then "\($diff.a.lost) events of the old recording were lost"
		elif $diff.b.lost > 0 then "\($diff.b.lost) events of the new recording were lost"
		elif $diff.a.lost == null or $diff.b.lost == null then "a recording does not say what was lost"
		elif $gpu == null then "no GPU is known in both recordings"
		elif $gpu.ratio == null or $gpu.work.time_ns.changed == null then "too little was recorded to tell noise from change"
		elif $gpu.work.busy_ns.change == null or any($gpu.causes[].share; .change == null) then "how long the GPU was idle is not known"
		else null end) as $doubt
	| if $doubt != null then verdict("cannot-tell"; $doubt)
	else
		$gpu.work as $work
		# Of the time for the old work: what each cause has more now. "changed" is about shares, which others move.
		| [$gpu.causes[] | .more = (.share.b * $gpu.ratio - .share.a)] as $causes
		| (($work.busy_ns.b - $work.busy_ns.a) / $work.time_ns.a) as $busy
		| ($causes | max_by(.more)) as $first
		| "\($work.unit) \($work.time_ns.a | length_of_time) -> \($work.time_ns.b | length_of_time)" as $says
		| ($work.time_ns.noise | length_of_time) as $noise
		| ($work.time_ns.changed and ($gpu.ratio - 1) * 100 >= $percent) as $slower
		| ($first == null or $busy >= $first.more) as $works
		| ($work.time_ns.noise * 100 > $percent * $work.time_ns.a) as $blind
		| (if $slower then
				if $works then verdict("work"; $says + " (noise \($noise)), most of all because the GPU works longer")
				else verdict($first.id | class; $says + " (noise \($noise)), most of all for \($first.id)") end
			elif $work.time_ns.changed then verdict("fine"; $says + " (noise \($noise))")
			elif $blind then
				verdict("cannot-tell"; $says + ": a change of \($percent) % would be lost in the noise (\($noise))")
			else verdict("fine"; $says + ", within noise (\($noise))") end),
		"change: busy \($busy | signed) of \($work.old)",
		($causes | sort_by(-(.more | fabs))[:4][] | select((.more | fabs) >= 0.01) | "change: \(.id) \(.more | signed) of \($work.old)"),
		(select($slower and $works) | $diff.kernels[:3][] | select(.mean_ns.changed == true)
			| "kernel: \(.mean_ns.a | length_of_time) -> \(.mean_ns.b | length_of_time) \(.name | clean | .[:120])"),
		(select($slower and ($works | not)) | $first
			| (select(.by.pid != null) | .by | "who: \(blamed)"), (select(.fix != "") | "fix: \(.fix)")),
		(select($gpu.a.step_operations != $gpu.b.step_operations)
			| "note: a step had \($gpu.a.step_operations // "-") operations, and has \($gpu.b.step_operations // "-")")
	end,
	($diff.gpus[] | "gpu: \(.index) \(.b.name | clean): idle \(.idle.a | percent) -> \(.idle.b | percent)"),
	(select($ended != "") | "note: \($ended)"),
	($diff.warnings[] | "warning: \(clean)")
' "$dir/diff.json")"
