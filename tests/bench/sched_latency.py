#!/usr/bin/env python3
"""Run-queue latency of the same events by `perf sched latency` and by `gdiag sched`.

  sched_latency.py [--seconds S] [--json FILE]          GDIAG=path/to/gdiag (default: target/release/gdiag)

Both record the whole machine at the same time, while threads sleep, wake each other and take each other's CPU
(tests/programs/knows). Columns, of each thread of them: how often it waited for a CPU, how long on average and at
most, by perf and by gdiag, and by how much gdiag differs; then how long after a wakeup alone, where perf has sched
timehist's word. Both count from the moment in which somebody wakes (sched_waking); `perf sched latency` counts from
when the thread is in the queue (sched_wakeup), some microseconds later, most of them its own. The last line says how
much the sums of all the time waited differ. Ends with 1 when counts differ, or a time by more than 1 % and 2 us; that
of latency after wakeups by 10 us.

Needs root and perf.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
GDIAG = os.environ.get("GDIAG", os.path.join(ROOT, "target/release/gdiag"))

# comm:tid | runtime ms | count | avg: ms | max: ms | max start: s | max end: s
ROW = re.compile(r"^\s*(.+):(\d+)\s*\|\s*([\d.]+) ms \|\s*(\d+) \| avg:\s*([\d.]+) ms \| max:\s*([\d.]+) ms")
# Those of `perf sched record`, and sched_wakeup: without it `perf sched latency` of some
# releases (6.1) knows of no wakeup.
EVENTS = ",".join("sched:sched_" + e for e in ("switch", "stat_runtime", "process_fork", "waking", "wakeup", "wakeup_new", "migrate_task"))
LEAST_US, WAKE_US, SHARE = 2, 10, 0.01


def loads(knows, seconds):
    ms = str(int(seconds * 1000))
    return [[knows, "preempt", ms], [knows, "preempt", ms], [knows, "sleep", str(int(seconds * 500)), "1000"],
            [knows, "futex", str(int(seconds * 2000))], [knows, "yield", str(int(seconds * 2000))]]


def recorder(arguments, ready):
    """Records as long as the file `ready` is there, which it is from when it records."""
    wait = f"touch {ready}; while test -e {ready}; do sleep 0.1; done"
    process = subprocess.Popen(arguments + ["--", "sh", "-c", wait], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 60
    while not os.path.exists(ready):
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            sys.exit(f"{arguments[0]} does not record")
        time.sleep(0.05)
    return process


def record(tmp, knows, seconds):
    perf, gdiag, ready = tmp + "/perf.data", tmp + "/gdiag.data", [tmp + "/perf", tmp + "/gdiag"]
    recorders = []
    try:
        recorders.append(recorder(["perf", "record", "-B", "-N", "-a", "-R", "-c", "1", "-m", "16M", "-e", EVENTS, "-o", perf], ready[0]))
        recorders.append(recorder([GDIAG, "record", "-q", "-a", "-F", "0", "-o", gdiag], ready[1]))
        running = [subprocess.Popen(load, stdout=subprocess.PIPE) for load in loads(knows, seconds)]
        threads = [json.loads(process.communicate()[0]) for process in running]
    finally:
        for file in filter(os.path.exists, ready):
            os.unlink(file)
        for process in recorders:
            said = process.communicate()[0].decode()
            if process.returncode:
                sys.exit(f"{process.args[0]} ends with {process.returncode}: {said}")
    return perf, gdiag, {t["tid"] for one in threads for t in one["threads"]}


def by_perf(path, tids):
    done = subprocess.run(["perf", "sched", "latency", "-p", "-i", path], capture_output=True, text=True)
    text = done.stdout
    if done.returncode or "Task" not in text:
        sys.exit(f"perf sched latency: {done.stderr}{text}")
    rows = {}
    for match in filter(None, map(ROW.match, text.splitlines())):
        tid = int(match[2])
        if tid in tids:
            rows[tid] = {"count": int(match[4]), "avg_us": float(match[5]) * 1e3, "max_us": float(match[6]) * 1e3}
    return rows


# time [cpu] comm[tid/pid] wait delay run
LINE = re.compile(r"\[\d+\]\s+(.+)\[(\d+)(?:/\d+)?\]\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$")


def woken_by_perf(path, tids):
    """How often a thread was woken and then waited, and how long in all."""
    text = subprocess.run(["perf", "sched", "timehist", "-i", path], capture_output=True, text=True).stdout
    sums = {}
    for match in filter(None, map(LINE.search, text.splitlines())):
        tid, delay = int(match[2]), float(match[3])
        if tid in tids and delay:
            n, total = sums.get(tid, (0, 0))
            sums[tid] = n + 1, total + delay * 1e3
    return sums


def by_gdiag(path, tids):
    out = subprocess.run([GDIAG, "sched", "-i", path, "--json"], capture_output=True, check=True).stdout
    document = json.loads(out)
    assert not document["lost"], f"{document['lost']} events lost"
    return {t["tid"]: {"comm": t["comm"], "count": t["runq_count"], "avg_us": t["runq_avg_ns"] / 1e3,
                       "max_us": t["runq_max_ns"] / 1e3,
                       "woken": next(((o["count"], o["ns"] / 1e3) for o in t["off"] if o["reason"] == "woken"), (0, 0))}
            for t in document["threads"] if t["tid"] in tids}


def differs(perf, gdiag, least):
    return abs(perf - gdiag) > max(perf * SHARE, least)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="latency-") as tmp:
        knows = tmp + "/knows"
        subprocess.run(["cc", "-O2", "-pthread", "-o", knows, ROOT + "/tests/programs/knows/knows.c"], check=True)
        perf_file, gdiag_file, tids = record(tmp, knows, args.seconds)
        perf, gdiag, woken = by_perf(perf_file, tids), by_gdiag(gdiag_file, tids), woken_by_perf(perf_file, tids)
    print(f"{'thread':20} {'count':>7} {'gdiag':>7}   {'avg us':>10} {'gdiag':>10} {'differs':>8}   "
          f"{'max us':>10} {'gdiag':>10} {'differs':>8}")
    bad, rows = 0, []
    for tid in sorted(tids):
        p, g = perf.get(tid), gdiag.get(tid)
        if not p or not g:
            print(f"{tid}: not seen by {'perf' if not p else 'gdiag'}")
            bad += 1
            continue
        row = {"comm": g["comm"], "tid": tid, "perf": p, "gdiag": g}
        rows.append(row)
        off = [k for k in ("avg_us", "max_us") if differs(p[k], g[k], WAKE_US if g["woken"][0] > g["count"] / 10 else LEAST_US)] + ["count"] * (p["count"] != g["count"])
        bad += bool(off)
        share = {k: (g[k] / p[k] - 1) * 100 if p[k] else 0 for k in ("avg_us", "max_us")}
        print(f"{g['comm'] + ':' + str(tid):20} {p['count']:7} {g['count']:7}   {p['avg_us']:10.1f} {g['avg_us']:10.1f} "
              f"{share['avg_us']:+7.2f}%   {p['max_us']:10.1f} {g['max_us']:10.1f} {share['max_us']:+7.2f}%"
              f"{'  <- ' + ', '.join(off) if off else ''}")
    print(f"\n{'thread':20} {'woken':>7} {'gdiag':>7}   {'all ms':>10} {'gdiag':>10} {'differs':>8}")
    for row in rows:
        (n, p), (count, g) = woken.get(row["tid"], (0, 0)), row["gdiag"]["woken"]
        if count < 100 or not n:
            continue
        row["woken"] = {"perf": [n, p], "gdiag": [count, g]}
        # timehist leaves out what is less than a microsecond.
        off = differs(p, g, n * LEAST_US)
        bad += off
        print(f"{row['comm'] + ':' + str(row['tid']):20} {n:7} {count:7}   {p / 1e3:10.2f} {g / 1e3:10.2f} {(g / p - 1) * 100:+7.2f}%{'  <-' if off else ''}")
    print()
    total = {who: sum(r[who]["count"] * r[who]["avg_us"] for r in rows) for who in ("perf", "gdiag")}
    if total["perf"]:
        share = (total["gdiag"] / total["perf"] - 1) * 100
        print(f"all the time waited: {total['perf'] / 1e3:.1f} ms by perf, {total['gdiag'] / 1e3:.1f} ms by gdiag, {share:+.3f}%")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"threads": rows, "total_us": total}, f, indent=1)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
