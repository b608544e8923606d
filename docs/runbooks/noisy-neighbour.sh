#!/bin/sh
# A program gets too little CPU: is it a neighbour, its quota, or its own threads? Needs no GPU, and touches no process.
#
# Exit status, as in README.md:
#   0   no thread waits for a CPU for --percent of the time in which it could run
#   10  cannot be told: events were lost, or who had the CPU is not known
#   11  neighbour: foreign programs had its CPU
#   12  quota: its cgroup had used up its CPU quota
#   13  crowded: its own threads had its CPU, or others were free that it may not use
#   1   failed; 2 wrong usage; 77 this machine or user cannot
# shellcheck disable=SC2016 # programs of jq
set -eu

usage() {
	cat <<'END'
usage: noisy-neighbour.sh [-d DUR] [--percent N] PID | --container ID | --cgroup PATH | --cpus LIST

  -d DUR       watch for so long (default 5s)
  --percent N  waiting for so much of the time is fine (default 5)
  --cpus LIST  whoever waits for these CPUs, such as 0,2-3

examples:
  noisy-neighbour.sh 4711
  noisy-neighbour.sh -d 30s --container 9e4f1c
  noisy-neighbour.sh --cpus 0,2-3
END
}

here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=SCRIPTDIR/lib.sh
. "$here/lib.sh"

duration=5s
percent=5
while [ $# -gt 0 ]; do
	case $1 in
	-d) need_value "$1" $# && duration=$2 ;;
	--percent) need_value "$1" $# && need_percent "$1" "$2" && percent=$2 ;;
	*) break ;;
	esac
	shift 2
done
case ${1:-} in
--cpus)
	need_value "$1" $#
	[ $# -eq 2 ] || wrong_usage "only one target, please"
	;;
--) wrong_usage "a program has to run already" ;;
*) need_target "$@" ;;
esac

begin
ended=
say "watching $* for $duration"
case $1 in
-*) run "$GDIAG" sched -q --json -d "$duration" -o "$dir/sched.json" "$1" "$2" ;;
*)
	run "$GDIAG" sched -q --json -d "$duration" -o "$dir/sched.json" -p "$1"
	if is_gone "$1"; then ended="process $1 ended meanwhile"; fi
	;;
esac
case $status in
0) ;;
2 | 77) exit "$status" ;;
3) fail "the target was never seen" ;;
*) fail "nothing was seen (gdiag sched ended with status $status)" ;;
esac
finish "$(query --argjson percent "$percent" --arg ended "$ended" --arg how "$1" '
	include "lib";
	def sum: add // 0;
	def named: "\(.comm | clean) (process \(.pid))";
	def off(reasons): [.off[]? | select(.reason as $reason | any(reasons[]; . == $reason)).ns] | sum;

	. as $sched
	| (.end_ns - .start_ns) as $length
	| [.threads[] | select(.target and .runq_ns != null) | .throttled = off(["throttled"])
		| .waited = .runq_ns + .throttled
		| .could_run = .run_ns + .waited] as $threads
	| [$threads[].pid] | unique as $own
	# One that hardly wants to run is no victim.
	| [$threads[] | select(.waited * 100 >= $percent * .could_run and .waited * 200 >= $length)] as $victims
	# Those that launch GPU work count most.
	| ([$victims[] | select(.dispatcher)] | max_by(.waited)) // ($victims | max_by(.waited)) | . as $victim
	# One that never ran waits for a CPU that it may use: which, is known when it is one.
	| ([$victim.cpu_ns[]?.cpu] | if . == [] and $victim.affinity_count == 1 then $victim.affinity else . end) as $cpus
	| [$sched.preemptors[] | .pid as $pid | .victims[] | select(.tid == $victim.tid and .pid == $victim.pid) | . + {by: $pid}] as $taken
	# Whoever ran where it ran: its wait was theirs. Threads of a process are one.
	| [$sched.threads[] | select(.tid != $victim.tid) | .ran = ([.cpu_ns[]? | select(.cpu as $cpu | any($cpus[]; . == $cpu)).ns] | sum)]
	| group_by(.pid) | map(max_by(.ran) + {ran: (map(.ran) | sum)} | .pid as $pid
		| .foreign = (if $how == "--cpus" then $pid != $victim.pid else any($own[]; . == $pid) | not end)
		| .times = ([$taken[] | select(.by == $pid).count] | sum) | .took = ([$taken[] | select(.by == $pid).ns] | sum))
	| map(select(.ran > 0)) | sort_by(-.ran) as $others
	| ([$others[] | select(.foreign).ran] | sum) as $foreign
	| ([$others[] | select(.foreign | not).ran] | sum) as $crowd
	| ([$sched.verdicts[] | select(.tid == $victim.tid and .pid == $victim.pid)] | .[0]) as $says
	| ([$sched.cpus[].switches] | sum) as $switches
	| ($victim != null and $victim.throttled * 2 > $victim.waited) as $quota
	| (def victim: "\($victim.comm | clean) (process \($victim.pid), thread \($victim.tid)) waited for a CPU for \($victim.waited / $victim.could_run | percent) of the time";
		# What is lost hides waits and makes none up: a few do not change the answer.
		if $sched.lost == null or $sched.lost * 20 > $switches then
			verdict("cannot-tell"; "\($sched.lost // "an unknown number of") events were lost, of \($switches) switches")
		elif $threads == [] then verdict("cannot-tell"; "no thread of it was seen")
		elif $victim == null then
			if $ended != "" then verdict("cannot-tell"; $ended + "; until then it had CPUs enough")
			else verdict("fine"; "no thread waited for a CPU for \($percent) % of the time") end
		elif $quota then verdict("quota"; victim + ", without quota")
		elif $foreign + $crowd == 0 then verdict("cannot-tell"; victim + "; who had it is not known")
		elif $crowd > $foreign then verdict("crowded"; victim + ", taken by threads of its own")
		else verdict("neighbour"; victim + ", taken by \([$others[] | select(.foreign)][0] | named)") end),
	(select($victim != null)
		| (select($victim.throttled > 0) | "quota: without it for \($victim.throttled | length_of_time) of \($length | length_of_time)"),
		(if $quota then "fix: raise cpu.max, or use a cpuset without a quota"
		else ($others[:4][] | select(.ran * 100 >= $length)
			| "who: \(named)\(if .foreign then "" else " (its own)" end) ran there for \(.ran | length_of_time)\(
				if .times > 0 then ", took its CPU \(.times) times, after which \($victim.comm | clean) (thread \($victim.tid)) waited \(.took | length_of_time)" else "" end)"),
			(select($says != null) | $says.evidence[] | "evidence: \(clean)"),
			($says.fix // "" | select(. != "") | "fix: \(clean)") end)),
	(select($sched.lost > 0) | "lost: \($sched.lost) events of \($switches) switches"),
	(select($ended != "") | "note: \($ended)"),
	($sched.notes[] | "note: \(clean)")
' "$dir/sched.json")"
