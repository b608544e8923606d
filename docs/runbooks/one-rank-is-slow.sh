#!/bin/sh
# A job of several processes is slow: which rank makes the others wait, and why?
#
# The ranks are the processes that launch GPU work. A rank is late when its GPU is idle for a reason of its own, or its
# kernels take longer; the others wait for it: in a collective on their GPU, or on the host. The slow rank is the one
# that is late for longest while the others wait.
#
# Exit status, as in README.md:
#   0       no rank keeps the others waiting for --percent of the time
#   10      cannot be told: no GPU data, lost events, fewer than two ranks
#   11..23  why the slow rank is late: 11 neighbour, 12 quota, 13 crowded, 14 machine, 15 input, 16 output, 17 cuda,
#           18 code, 19 lock, 20 peer, 21 device, 22 demand, 23 held
#   30      work: its kernels take longer (or are more) than those of the others
#   1       failed; 2 wrong usage; 77 this machine or user cannot
# shellcheck disable=SC2016 # programs of jq
set -eu

usage() {
	cat <<'END'
usage: one-rank-is-slow.sh [-d DUR] [--percent N] PID... | --all | --container ID | --cgroup PATH | -i FILE

  -d DUR       record for so long (default 10s)
  --percent N  waiting for so much of the time is fine (default 5)
  --all        all processes of this machine that have the CUDA driver loaded
  -i FILE      read this recording of all ranks instead

A launcher with its children, such as torchrun, is one PID.

examples:
  one-rank-is-slow.sh --all
  one-rank-is-slow.sh -d 30s 4711 4712
END
}

here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"

# Those with the driver in their address space.
cuda_processes() {
	for maps in /proc/[0-9]*/maps; do
		if grep -q '/libcuda\.so' "$maps" 2>/dev/null; then
			process=${maps#/proc/}
			printf '%s\n' "${process%/maps}"
		fi
	done
}

duration=10s
percent=5
input=
all=
while [ $# -gt 0 ]; do
	case $1 in
	-d) need_value "$1" $# && duration=$2 ;;
	--percent) need_value "$1" $# && need_percent "$1" "$2" && percent=$2 ;;
	-i) need_value "$1" $# && input=$2 ;;
	--all)
		all=yes
		shift
		continue
		;;
	*) break ;;
	esac
	shift 2
done
if [ -n "$input$all" ]; then
	if [ $# -gt 0 ] || [ -n "${input:+$all}" ]; then wrong_usage "only one target, please"; fi
	[ -z "$input" ] || need_file "$input"
else
	case ${1:-} in
	'' | -*) need_target "$@" ;;
	*) for process; do need_pid "$process"; done ;;
	esac
fi
[ "${1:-}" != -- ] || wrong_usage "ranks have to run already"

begin
ended=
if [ -z "$input" ]; then
	input=$dir/gdiag.data
	if [ -n "$all" ]; then
		for process in $(cuda_processes); do
			# The search takes its time.
			is_gone "$process" || set -- "$@" "$process"
		done
		[ $# -gt 0 ] || fail "no process has the CUDA driver loaded"
	fi
	case $1 in
	-*) record_target "$input" "$duration" "$@" ;;
	*)
		processes=$*
		record_target "$input" "$duration" "$(IFS=,; echo "$*")"
		ended=
		for process in $processes; do
			if is_gone "$process"; then ended="process $process ended meanwhile"; fi
		done
		;;
	esac
fi
report_to "$input" "$dir/report.json" --min-gap 100us --gaps 1000
[ "$status" = 0 ] || ended=${ended:-the recording is cut or damaged}
# What each GPU ran, collectives apart: there the GPU is busy with waiting.
: >"$dir/kernels.json"
for gpu in $(query '.gpus[].index' "$dir/report.json"); do
	report_to "$input" "$dir/gpu.json" --gpu "$gpu" --gaps 0
	query -c --argjson gpu "$gpu" '
		def in_collective: .name | test("nccl|cross_device_reduce|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"; "i");
		{gpu: $gpu, collective: (.kernels | map(select(in_collective).total_ns) | add // 0),
			own: (.kernels | map(select(in_collective | not).total_ns) | add // 0)}
	' "$dir/gpu.json" >>"$dir/kernels.json"
done
finish "$(query --argjson percent "$percent" --arg ended "$ended" --slurpfile kernels "$dir/kernels.json" '
	include "lib";
	def sum: add // 0;
	def median: sort | if . == [] then 0 else (.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2 end;
	# Nobody here is late then: the others are waited for.
	def for_others: . == "host.peer" or . == "host.network" or . == "host.no-demand";

	. as $report
	| [.threads[] | select(.dispatcher)] as $dispatchers
	| [$dispatchers[].pid] | unique as $ranks
	| (reduce $dispatchers[] as $thread ({}; .["\($thread.pid)"] //= $thread.comm)) as $names
	# Helpers, such as loader workers, belong to the rank that waited for them.
	| (reduce ($report.gpus[].gaps[].chain | range(1; length) as $n | [.[$n - 1].pid, .[$n].pid]) as [$waits, $late]
		({}; if any($ranks[]; . == $late) or $waits == $late then .
			else .["\($late)"] //= (.["\($waits)"] // $waits) end)) as $helpers
	| (def rank: $helpers["\(.)"] // .; [
		$report.gpus[]
		| .index as $gpu
		| ([.gaps[].next.pid // empty] | unique | map(select(. as $pid | any($ranks[]; . == $pid)))) as $users
		| ($kernels[] | select(.gpu == $gpu)) as $ran
		| $users[] as $pid
		| [.causes[] | .id as $id | .fix as $fix | .by[] | . + {cause: $id, fix: $fix, rank: (.pid | rank)}] as $blames
		| {pid: $pid, $gpu, window: .window_ns,
			late: [$blames[] | select(.rank == $pid and (.cause | for_others | not))],
			blames: $blames,
			work: (if ($users | length) == 1 then $ran.own else 0 end),
			collective: (if ($users | length) == 1 then $ran.collective else 0 end)}
	]) as $uses
	| [$ranks[] as $pid | [$uses[] | select(.pid == $pid)] | select(. != []) | {
			$pid, gpus: map(.gpu), late: map(.late[]), work: (map(.work) | sum), collective: (map(.collective) | sum),
			waited: (map(.collective + ([.blames[] | select(.rank != $pid) | .rank as $rank | select(any($ranks[]; . == $rank)).ns] | sum)
				+ ([.blames[] | select(.rank == $pid and (.cause | for_others)).ns] | sum)) | sum)
		} | .late_ns = ([.late[].ns] | sum)] as $all
	| ([$report.gpus[].window_ns] | max // 0) as $window
	| ($all | max_by(.late_ns + .work)) as $slow
	| [$all[] | select(.pid != $slow.pid)] as $others
	| (($others | map(.waited) | median) - ($slow.waited // 0)) as $waits
	| (($slow.work // 0) - ($others | map(.work) | median)) as $more_work
	| [($slow.late // []) | group_by(.cause)[] | .[0].cause as $cause
		| {$cause, fix: .[0].fix, by: ., ns: (map(.ns) | sum)}
		| .more = .ns - ([$others[] | [.late[] | select(.cause == $cause).ns] | sum] | median)] as $reasons
	| ($reasons | max_by(.more)) as $reason
	| ($report | [why_not]) as $doubts
	| (def slow_rank: "process \($slow.pid) (\($names["\($slow.pid)"] | clean))";
		if $doubts != [] then verdict("cannot-tell"; $doubts[0])
		elif ($all | length) < 2 then verdict("cannot-tell"; "\($all | length) of the processes launched GPU work that others could wait for")
		elif $waits * 100 < $percent * $window then
			if $ended != "" then verdict("cannot-tell"; $ended + "; until then no rank kept the others waiting")
			else verdict("fine"; "no rank kept the others waiting for \($percent) % of the time") end
		elif $reason == null or $more_work > $reason.more then
			verdict("work"; "the others wait for \(slow_rank): its kernels take \($more_work | length_of_time) longer"),
			"fix: look at the clocks and the temperature of GPU \($slow.gpus[0]), and at whether it got more work"
		else verdict($reason.cause | class; "the others wait for \(slow_rank), most of all: \($reason.cause)"),
			"cause: \($reason.cause) \($reason.ns | length_of_time), \($reason.more | length_of_time) more than the others",
			($reason.by | together[:3][] | "who: \(blamed), \(.ns | length_of_time)"),
			([$report.gpus[].gaps[].parts[] | select(.cause == $reason.cause and .pid == $reason.by[0].pid)] | where | "where: \(.)"),
			(select($reason.fix != "") | "fix: \($reason.fix)")
		end),
	($all[] | "rank: \(.pid) \($names["\(.pid)"] | clean) on GPU \(.gpus | map(tostring) | join(",")): late \(if $window > 0 then .late_ns / $window else null end | percent), waited for others \(if $window > 0 then .waited / $window else null end | percent), kernels \(if $window > 0 then .work / $window else null end | percent)"),
	(select($ended != "") | "note: \($ended)"),
	($report | warnings)
' "$dir/report.json")"
