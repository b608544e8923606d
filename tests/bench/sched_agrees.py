#!/usr/bin/env python3
"""Run-queue latency of `gdiag sched`, live, against that of `perf sched record`, of the same load at the same time.

  sched_agrees.py GDIAG LOAD [ARG...]

Perf's is added up here from its events, to the nanosecond, by its own rule: from sched_waking, or from a switch-out
that leaves the thread runnable, to the switch-in. Perf's handlers run first and are part of what gdiag measures, so
that waits of a few microseconds differ by some tens of nanoseconds.
"""
import collections, json, os, re, subprocess, sys, tempfile

gdiag, load = sys.argv[1], sys.argv[2:]
D = tempfile.mkdtemp(prefix="sched-agrees-")
data, out = f"{D}/perf.data", f"{D}/gdiag.json"
subprocess.run(["timeout", "60", "perf", "sched", "record", "-k", "CLOCK_MONOTONIC", "-o", data, "--",
                gdiag, "sched", "-q", "--json", "-o", out, "--", *load],
               check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
summary = json.load(open(out))
text = subprocess.run(["perf", "script", "-i", data, "--ns", "-F", "time,event,trace"],
                      check=True, capture_output=True, text=True, errors="replace").stdout
since, asleep = {}, set()
delay = collections.defaultdict(list)
for line in text.splitlines():
    m = re.match(r"\s*(\d+)\.(\d{9}):\s+(?:sched:)?(\w+):\s+(.*)", line)
    if not m:
        continue
    t, event, trace = int(m[1]) * 10**9 + int(m[2]), m[3], m[4]
    if not summary["start_ns"] <= t <= summary["end_ns"]:
        continue
    if event in ("sched_waking", "sched_wakeup_new"):
        tid = int(re.search(r" pid=(\d+) ", trace)[1])
        if event == "sched_wakeup_new" or tid in asleep:
            since[tid] = t
            asleep.discard(tid)
    elif event == "sched_switch":
        m = re.search(r" prev_pid=(\d+) .*prev_state=(\S+) ==> .* next_pid=(\d+) ", trace)
        prev, state, new = int(m[1]), m[2], int(m[3])
        if state.startswith("R"):
            since[prev] = t
        else:
            asleep.add(prev)
        if new in since:
            delay[new].append(t - since.pop(new))
worst = 0
print(f"{'thread':24}{'perf n':>9}{'gdiag n':>9}{'perf avg ns':>13}{'gdiag avg ns':>14}{'differs':>9}")
for thread in summary["threads"]:
    perf = delay.get(thread["tid"], [])
    if len(perf) < 100 or not thread["target"]:
        continue
    average = sum(perf) / len(perf)
    differs = thread["runq_avg_ns"] / average - 1
    worst = max(worst, abs(differs))
    print(f"{thread['comm']:24}{len(perf):9}{thread['runq_count']:9}{average:13.0f}{thread['runq_avg_ns']:14}{differs:9.2%}")
print(f"lost {summary['lost']}; worst {worst:.2%}")
