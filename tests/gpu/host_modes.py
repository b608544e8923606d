#!/usr/bin/env python3
"""sched, syscalls, export and the flight recorder beside a PyTorch loop: do they tell the truth, and what do they cost?

  host_modes.py [--only PART[,PART]] [--budget 540] [--keep DIR] [--driver torch|cuda]

GDIAG names the binary (default: target/release/gdiag). Needs root, a GPU, gcc, and a python3 with torch (with --driver cuda
not: then a simulated GPU does, too). Parts:

  sched     a hog on the CPU that the loop's dispatch thread is pinned to: who is told, and how much against /proc's count
  syscalls  the loop's calls, summed up, streamed and recorded: which overlap idle gaps
  export    a recording as Perfetto and Chrome traces: as many kernels, launches and gaps as the report has
  flight    a flight recorder with gap>50ms, and a process that is stopped for 150 ms: what is kept
  cost      steps of the loop without anything, and with each mode watching the whole machine
  many      pairs of threads that wake each other on every CPU: what is lost

Writes to $OUT (or target/gpu): attach.log with every command and what it said, attach.json, reports.tar.gz. Prints the tables
last; the exit status is 1 when a row failed.
"""

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

import toolkit
from attachlib import GDIAG, SECOND, Bench, Failed, Skip, now, read, say, tables, tail, tasks, write_results

LOAD = os.path.join(toolkit.HERE, "../bench/hostload.c")


def schedstat(pid, tid):
    """ns on a CPU and waiting for one, as the kernel counts them."""
    run, waited, _ = read(f"/proc/{pid}/task/{tid}/schedstat").split()
    return int(run), int(waited)


def dispatcher(loop):
    """The thread that runs most; the loop has one that launches."""
    return max(tasks(loop.pid), key=lambda tid: schedstat(loop.pid, tid)[0])


def gdiag(bench, *arguments, seconds=60, quiet=True):
    return bench.run([GDIAG, *map(str, arguments)], seconds, quiet=quiet)


def parsed(process, what):
    try:
        return json.loads(process.stdout)
    except ValueError:
        raise Failed(f"{what}: status {process.returncode}: {tail(process.stderr)}") from None


def part_sched(bench):
    loop = bench.start_loop("--mode", "eager").wait("ready")
    time.sleep(1)
    tid = dispatcher(loop)
    cpu = sorted(os.sched_getaffinity(0))[-1]
    os.sched_setaffinity(tid, {cpu})
    hog = bench.popen(["sh", "-c", "exec taskset -c $0 sh -c 'while :; do :; done'", str(cpu)])
    time.sleep(0.5)
    before = schedstat(loop.pid, tid)
    begin = now()
    live = gdiag(bench, "sched", "-p", loop.pid, "-d", "3s", "--json", quiet=False)
    after, took = schedstat(loop.pid, tid), now() - begin
    text = gdiag(bench, "sched", "-p", loop.pid, "-d", "1s", quiet=False)
    bench.reports["sched-live.txt"] = text.stdout + text.stderr
    recording = bench.record("sched", "-p", loop.pid, seconds=3, target=loop)
    of_file = gdiag(bench, "sched", "-i", recording.data, "--json")
    bench.reports["sched-recorded.txt"] = gdiag(bench, "sched", "-i", recording.data, quiet=False).stdout
    bench.forget(hog)
    loop.finish()

    for name, process in [("live", live), ("recorded", of_file)]:
        summary = parsed(process, name)
        thread = next((t for t in summary["threads"] if t["tid"] == tid), None)
        if not thread:
            bench.check(name, False, f"thread {tid} is not in it")
            continue
        preemptors = [f"{p['comm']} {p['tid']}: {p['count']} times, {p['ns'] / 1e6:.0f} ms" for p in summary["preemptors"][:3]]
        first = summary["preemptors"][0] if summary["preemptors"] else {}
        bench.check(f"{name}: preemptor", first.get("pid") == hog.pid, "; ".join(preemptors))
        detail = f"run {thread['run_ns'] / 1e6:.0f} ms, waited {thread['runq_ns'] / 1e6:.0f} ms, longest {thread['runq_max_ns'] / 1e6:.1f} ms, involuntary {thread['involuntary']}"
        bench.check(f"{name}: dispatch thread", None, detail)
        if name == "live":
            # The command takes longer than it watches: shares of the time, which is steady, are compared.
            share = [(b - a) / took for a, b in zip(before, after)]
            seen = [thread["run_ns"] / 3e9, thread["runq_ns"] / 3e9]
            bench.check("live: shares against /proc", all(abs(a - b) < 0.05 for a, b in zip(share, seen)),
                        f"running {seen[0]:.3f}, /proc {share[0]:.3f}; waiting {seen[1]:.3f}, /proc {share[1]:.3f}")


def part_syscalls(bench):
    loop = bench.start_loop("--mode", "eager").wait("ready")
    time.sleep(1)
    stream = gdiag(bench, "syscalls", "-p", loop.pid, "-d", "1s", "--max-events", 4000)
    bench.reports["syscalls-stream.txt"] = stream.stdout + stream.stderr
    lines = stream.stdout.splitlines()
    bench.check("stream", stream.returncode == 0 and len(lines) > 20, f"{len(lines)} lines; {tail(stream.stderr)}")
    nvidia = next((line for line in lines if "/dev/nvidia" in line), None)
    bench.check("a call on the driver's device", None, (nvidia or "none in it").strip()[:160])
    summary = gdiag(bench, "syscalls", "-s", "-p", loop.pid, "-d", "2s", "--json")
    calls = [call for thread in parsed(summary, "syscalls -s")["threads"] for call in thread["calls"]]
    total = sum(call["count"] for call in calls)
    names = sorted({call["name"] for call in calls}, key=lambda name: -sum(c["count"] for c in calls if c["name"] == name))
    bench.check("summary", total > 0, f"{total} calls: {', '.join(names[:8])}")
    bench.reports["syscalls-summary.txt"] = gdiag(bench, "syscalls", "-s", "-p", loop.pid, "-d", "1s", quiet=False).stdout

    recording = bench.record("syscalls", "--syscalls", "-p", loop.pid, seconds=3, target=loop)
    bench.check_recording("recorded", recording)
    recorded = parsed(gdiag(bench, "syscalls", "-s", "-i", recording.data, "--json"), "syscalls -s -i")
    bench.reports["syscalls-recorded.txt"] = gdiag(bench, "syscalls", "-s", "-i", recording.data, quiet=False).stdout
    calls = [call for thread in recorded["threads"] for call in thread["calls"]]
    overlap = sum(call.get("idle_overlap_ns") or 0 for call in calls)
    idle = sum(gpu["idle_ns"] or 0 for gpu in recording.report["gpus"])
    bad = [call["name"] for call in calls if (call.get("idle_overlap_ns") or 0) > call["total_ns"]]
    most = sorted(calls, key=lambda call: -(call.get("idle_overlap_ns") or 0))[:3]
    most = ", ".join(f"{call['name']} {(call.get('idle_overlap_ns') or 0) / 1e6:.1f} ms" for call in most)
    bench.check("calls and idle gaps", overlap > 0 and not bad, f"idle {idle / 1e6:.0f} ms; {most}; overlap longer than the calls: {bad or 'none'}")
    if bench.args.keep:
        bench.keep(recording, "syscalls")
    loop.finish()


def part_export(bench):
    loop = bench.start_loop("--mode", "graph" if bench.args.driver == "torch" else "eager").wait("ready")
    time.sleep(1)
    recording = bench.record("export", "--syscalls", "-p", loop.pid, seconds=2, target=loop)
    bench.check_recording("recorded", recording)
    loop.finish()
    trace = bench.tmp + "/trace.json"
    done = gdiag(bench, "export", "-i", recording.data, "--format", "chrome", "-o", trace)
    if done.returncode:
        raise Failed(f"export: {tail(done.stderr)}")
    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    kinds = {}
    for event in events:
        if event["ph"] in "BX":
            kinds[event.get("cat", "-")] = kinds.get(event.get("cat", "-"), 0) + 1
    starts, ends = ({e["id"] for e in events if e["ph"] == ph} for ph in "sf")
    bench.check("Chrome: flows", starts == ends and len(starts) > 0, f"{len(starts)} begin, {len(ends)} end; {len(starts ^ ends)} without the other")
    bench.check("Chrome: slices", None, f"{os.path.getsize(trace) >> 10} KiB; {kinds}")
    native = bench.tmp + "/trace.pftrace"
    begin = time.monotonic()
    done = gdiag(bench, "export", "-i", recording.data, "--format", "perfetto", "-o", native)
    size = os.path.getsize(native) if os.path.exists(native) else 0
    bench.check("Perfetto", done.returncode == 0 and size > 0, f"{size >> 10} KiB of {os.path.getsize(recording.data) >> 10} KiB in {time.monotonic() - begin:.2f} s; {tail(done.stderr)}")
    if bench.args.keep:
        bench.keep(recording, "export")


def part_flight(bench):
    loop = bench.start_loop("--mode", "eager").wait("ready")
    time.sleep(1)
    file = bench.tmp + "/flight.data"
    begin = now()
    started = gdiag(bench, "start", "-p", loop.pid, "--window", "3s", "--after", "500ms", "--snapshot-on", "gap>50ms", "-o", file, quiet=False)
    if started.returncode:
        raise Failed(f"start: {tail(started.stderr)}")
    bench.undo.append(lambda: subprocess.run([GDIAG, "stop"], capture_output=True, check=False, timeout=20))
    running = now()
    time.sleep(3)
    armed = parsed(gdiag(bench, "stat", "--json", quiet=False), "stat")
    early = os.path.exists(file + ".1")
    os.kill(loop.pid, signal.SIGSTOP)
    time.sleep(0.15)
    os.kill(loop.pid, signal.SIGCONT)
    deadline = time.monotonic() + 10
    while not os.path.exists(file + ".1") and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1.5)
    taken = gdiag(bench, "snapshot", "-o", bench.tmp + "/now.data", "--last", "1s", quiet=False)
    stat = parsed(gdiag(bench, "stat", "--json", quiet=False), "stat")
    stopped = gdiag(bench, "stop", quiet=False)
    ended = now()
    again = gdiag(bench, "stat", quiet=False)
    loop.goes_on()
    loop.finish()
    bench.window("before", loop, loop.ready_at + SECOND // 5, begin)
    bench.window("with it", loop, running + SECOND // 5, ended)
    bench.check("quiet before", not early, f"armed: {json.dumps(armed)[:300]}")
    bench.check("stop, then none", stopped.returncode == 0 and again.returncode == 3, f"{tail(stopped.stderr + stopped.stdout)}; stat: status {again.returncode}")
    kept = sorted(name for name in os.listdir(bench.tmp) if name.startswith("flight.data."))
    if not kept:
        return bench.check("snapshot of the gap", False, json.dumps(stat)[:300])
    report = parsed(gdiag(bench, "report", "-i", file + ".1", "--json", "--min-gap", "50ms"), "report")
    bench.reports["flight.txt"] = gdiag(bench, "report", "-i", file + ".1", quiet=False).stdout
    gaps = [gap for gpu in report["gpus"] for gap in gpu["gaps"]]
    longest = max(gaps, key=lambda gap: gap["end_ns"] - gap["start_ns"], default=None)
    if not longest:
        return bench.check("snapshot of the gap", False, f"no gap in it; {report['quality']['warnings']}")
    causes = {}
    for part in longest["parts"]:
        causes[part["cause"]] = causes.get(part["cause"], 0) + part["end_ns"] - part["start_ns"]
    stop_ns = causes.get("host.stopped", 0)
    window = (report["recording"]["end_ns"] - report["recording"]["start_ns"]) / 1e9
    bench.check("snapshot of the gap", stop_ns > 100e6 and len(kept) == 1,
                f"{kept}; gap of {(longest['end_ns'] - longest['start_ns']) / 1e6:.0f} ms, host.stopped {stop_ns / 1e6:.0f} ms; window {window:.2f} s, lost {report['quality']['bpf_lost']}")
    last = parsed(gdiag(bench, "report", "-i", bench.tmp + "/now.data", "--json"), "report")
    window = (last["recording"]["end_ns"] - last["recording"]["start_ns"]) / 1e9
    kernels = sum(kernel["count"] for kernel in last["kernels"])
    bench.check("snapshot on demand", taken.returncode == 0 and kernels > 0 and window < 1.3, f"{window:.2f} s, {kernels} kernels")
    if bench.args.keep and os.path.getsize(file + ".1") < 8 << 20:
        shutil.copyfile(file + ".1", bench.args.keep + "/flight.data")


def part_cost(bench):
    """In turn, twice: medians of steps beside those without anything, before and after."""
    loop = bench.start_loop("--mode", "eager").wait("ready")
    time.sleep(2)
    modes = {
        "sched": [GDIAG, "sched", "-d", "60s"],
        "sched -p": [GDIAG, "sched", "-p", str(loop.pid), "-d", "60s"],
        "syscalls -s -p": [GDIAG, "syscalls", "-s", "-p", str(loop.pid), "-d", "60s"],
        "syscalls -p": [GDIAG, "syscalls", "-p", str(loop.pid), "-d", "60s"],
        "record --no-inject": [GDIAG, "record", "--no-inject", "-o", bench.tmp + "/cost.data", "-p", str(loop.pid), "-d", "60s"],
    }
    ratios, alone = {}, []

    def steps(seconds):
        begin = now()
        time.sleep(seconds)
        times = [t for t in loop.times() if t >= begin]
        return statistics.median(b - a for a, b in zip(times, times[1:]))

    for _ in range(2):
        for name, command in modes.items():
            quiet = steps(2)
            watch = bench.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(1)
            watched = steps(2)
            watch.send_signal(signal.SIGINT)
            watch.wait(20)
            bench.forget(watch)
            ratios.setdefault(name, []).append(watched / quiet)
            alone.append(quiet)
    loop.finish()
    spread = max(alone) / min(alone)
    bench.check("step alone", None, f"median {statistics.median(alone) / 1e6:.2f} ms, from {min(alone) / 1e6:.2f} to {max(alone) / 1e6:.2f} ms")
    for name, values in ratios.items():
        bench.check(name, None, f"step {', '.join(f'{value:.3f}' for value in values)} of before it (alone varies by {spread:.3f})")


def part_many(bench):
    load = bench.tmp + "/hostload"
    subprocess.run(["gcc", "-O2", "-o", load, LOAD, "-lpthread"], check=True, timeout=60)
    pairs = os.cpu_count()

    def rate(wrap):
        done = bench.run([*wrap, load, "switch", "-n", str(pairs), "-s", "2", "-w", "0.5"], 60)
        found = re.search(r'"ops_s":\s*([\d.]+)', done.stdout + done.stderr)
        return (float(found[1]) if found else None), done

    base, _ = rate([])
    if not base:
        raise Failed("the load says no rate")
    for name, wrap in {
        "sched -a": [GDIAG, "sched", "-a", "--"],
        "record -a": [GDIAG, "record", "--no-inject", "--no-stacks", "-a", "-o", bench.tmp + "/many.data", "--"],
        "syscalls -s -a": [GDIAG, "syscalls", "-s", "-a", "--"],
    }.items():
        again, _ = rate([])
        ops, done = rate(wrap)
        summary = next((line for line in done.stderr.splitlines() if line.startswith("[ gdiag")), tail(done.stderr))
        # More than any ring buffer takes: what is recorded event by event loses some, and says so.
        # Of switches that were added up, the few are lost that the machine hides from BPF (some sandboxes do).
        found = re.search(r"lost ([\d,]+)", summary)
        few = found and int(found[1].replace(",", "")) <= (200 if name == "sched -a" else 0)
        passed = None if name == "record -a" else bool(ops and few)
        bench.check(name, passed, f"{(again or 0) * 2 / 1e6:.2f} M switches/s alone, slowdown {again / ops if ops and again else 0:.2f}; {summary}")


PARTS = {"sched": part_sched, "syscalls": part_syscalls, "export": part_export, "flight": part_flight, "cost": part_cost, "many": part_many}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--only", default="", help="parts")
    args.add_argument("--budget", type=float, default=540, help="seconds for everything")
    args.add_argument("--keep", metavar="DIR", help="keep recordings of at most 16 MiB each there")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("--seed", type=int, default=5)
    args = args.parse_args()
    wanted = list(filter(None, args.only.split(","))) or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if args.keep:
        os.makedirs(args.keep, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    bench = Bench(args)
    try:
        for name in wanted:
            bench.part = name
            if bench.left() < 40:
                bench.check("time", None, "not run: the time is over")
                continue
            say(f"{name}, {bench.left():.0f} s left")
            try:
                PARTS[name](bench)
            except Skip as why:
                bench.check("skipped", None, str(why))
            except (Failed, OSError, KeyError, subprocess.TimeoutExpired) as error:
                bench.check("went on", False, f"{type(error).__name__}: {error}")
            bench.clear()
            write_results(bench)
    finally:
        bench.clear()
        write_results(bench)
        bench.log.write(tables(bench) + "\n")
        bench.log.close()
        say("\n" + tables(bench))
        shutil.rmtree(bench.tmp, ignore_errors=True)
    sys.exit(1 if any(row["pass"] is False for row in bench.rows) else 0)


if __name__ == "__main__":
    main()
