#!/usr/bin/env python3
"""Attaches gdiag to running CUDA programs, lets go, and kills it on the way: do they come to harm, and are they recorded?

  attach.py [--quick] [--only PART[,PART]] [--budget 540] [--keep DIR] [--driver torch|cuda]

GDIAG names the binary (default: target/release/gdiag). Needs root, a GPU, gcc, and a python3 with torch (with --driver cuda
not: then a simulated GPU does, too). Parts, in the order of their worth, should the time run out:

  eager    a PyTorch training loop, recorded twice, then torch.profiler in it; is its result that of a run alone?
  graph    the same with a CUDA graph of the step that is older than the attach
  pause    many fresh processes: how long was a thread held, how long the longest step
  kill     kill -9 of gdiag on its way into and out of processes
  plain    programs without CUPTI: of the driver, of the static runtime, before their first CUDA call, before they load torch
  engine   a process spawned by a recorded one
  probes   without the library, by probes on the driver; and while torch.profiler holds CUPTI
  cgroup   a loop in a cgroup and in mount and PID namespaces of its own
  threads  a loop with data-loader workers that are forked anew all the time
  dormant  launches of a process without the library, with it asleep, and before, in and after a recording

Writes to $OUT (or target/gpu): attach.log with every command, what it said, and the tables; attach.json; and reports.tar.gz.
--keep DIR keeps recordings of a second. Prints the tables last; the exit status is 1 when a row failed.
"""

import argparse
import collections
import os
import platform
import re
import shutil
import signal
import statistics
import sys
import time

import toolkit
from attachlib import (GDIAG, INJECTED, LOOP, SECOND, Bench, Failed, Recording, Skip, Target, held_threads, mapped, now,
                       read, say, tables, tail, tasks, write_results)


class OutOfTime(Exception):
    pass


def on_alarm(*_):
    raise OutOfTime


def same_result(bench, recorded, alone):
    """The recorded run against one of as many steps without gdiag."""
    same = recorded.get("steps") == alone.get("steps") and all(recorded.get(key) == alone.get(key) for key in ("losses", "weights", "checks"))
    finite = bool(recorded.get("finite"))
    detail = f"{recorded.get('steps')} steps: weights {recorded.get('weights')}, losses {recorded.get('losses')}; alone {alone.get('weights')}, {alone.get('losses')}"
    bench.check("bit-identical", same and finite, detail + ("" if finite else "; not finite"))


def same_so_far(bench, name, result):
    """Against the eager run alone, as far as both went."""
    if not bench.reference:
        return bench.check(name, None, "the part eager, whose losses are the reference, has not run")
    checks = list(zip(bench.reference, result.get("checks") or []))
    return bench.check(name, bool(checks) and all(a == b for a, b in checks), f"losses of the first {100 * len(checks)} steps against those of a run alone")


def device_events(profile):
    return sum(count for kind, count in profile["events"].items() if not kind.startswith("cuda_"))


def training(bench, mode):
    quick, torch = bench.args.quick, bench.args.driver == "torch"
    seconds = 1.5 if quick else 3
    loop = bench.start_loop("--mode", mode).wait("ready")
    time.sleep(1.5)
    first = bench.record(f"{mode}-A", "-p", loop.pid, seconds=seconds, target=loop)
    time.sleep(1)
    second = bench.record(f"{mode}-B", "-p", loop.pid, seconds=seconds, target=loop)
    time.sleep(1.2)
    quiet = now()
    bench.record_to_keep(mode, "-p", loop.pid)
    profile = loop.profile(20) if torch else None
    time.sleep(1)
    result = loop.finish()
    ended = now()

    bench.window("before", loop, loop.ready_at + SECOND // 5, first.begin)
    bench.around("A", loop, first)
    bench.window("between", loop, first.end + SECOND // 5, second.begin)
    bench.around("B", loop, second)
    bench.window("after", loop, second.end + SECOND // 5, quiet)
    if profile:
        bench.window("in torch.profiler", loop, profile["begin_ns"], profile["steps_end_ns"])
        bench.window("after torch.profiler", loop, profile["end_ns"] + SECOND // 5, ended)
    bench.check_recording("A", first)
    bench.check_recording("B", second)

    alone = bench.start_loop("--mode", mode, "--steps", result["steps"], name="alone").wait("ready")
    time.sleep(0.3)
    profile_alone = alone.profile(20) if torch else None
    reference = alone.result(60)
    begin = profile_alone["end_ns"] if profile_alone else alone.ready_at
    bench.window("run alone", alone, begin + SECOND // 5, now())
    same_result(bench, result, reference)
    if profile:
        seen, expected = device_events(profile), device_events(profile_alone)
        bench.check("torch.profiler after it", seen == expected > 0, f"{seen} device events in 20 steps, alone {expected}; {profile['events']}")
    if mode == "eager":
        bench.reference = reference["checks"]


def part_eager(bench):
    training(bench, "eager")


def part_graph(bench):
    bench.need_torch()
    training(bench, "graph")


def attached_once(bench, kind, number, target):
    """One process, from its first attach to its end."""
    target.go()
    time.sleep(0.3 if kind != "torch" else 0.7)
    recording = bench.record(f"pause-{kind}-{number}", "-p", target.pid, seconds=0.5, target=target)
    goes_on = target.goes_on()
    time.sleep(0.2)
    target.finish()
    if kind == "torch" and not any(p["kind"] == kind for p in bench.pauses):
        bench.keep(recording, "injected")
    recording.drop()
    times = target.times()
    pairs = list(zip(times, times[1:]))
    steady = sorted(b - a for a, b in pairs if a > target.ready_at and b < recording.begin)
    at_attach = [b - a for a, b in pairs if b > recording.begin and a < (recording.first_ns() or recording.end) + SECOND // 20]
    at_detach = [b - a for a, b in pairs if b > recording.ended_ns() and a < recording.end]
    injection = recording.injection()
    bench.pauses.append({
        "kind": kind, "goes_on": goes_on, "operations": recording.operations(),
        "loaded_ns": injection and injection[0], "held_ns": injection and injection[1],
        "steady_ns": statistics.median(steady) if steady else None, "steady_max_ns": steady[-1] if steady else None,
        "attach_max_ns": max(at_attach, default=None), "detach_max_ns": max(at_detach, default=None),
        "first_ms": (recording.first_ns() - recording.begin) / 1e6 if recording.first_ns() else None,
    })


def part_pause(bench):
    few = bench.args.quick
    loads = [("C", "-H"), ("C, sleeping sync", "-b", "-H")] * (3 if few else 15)
    waiting = [(kind, bench.start_load(*options)) for kind, *options in loads]
    if not few:
        waiting += [("torch", bench.start_loop("--hold")) for _ in range(5)]
    for kind, target in waiting:
        target.wait("ready")
    failures = []
    for number, (kind, target) in enumerate(waiting):
        try:
            attached_once(bench, kind, number, target)
        except Failed as why:
            failures.append(f"{kind} {number}: {why}")
    for kind in dict.fromkeys(kind for kind, _ in waiting):
        mine = [p for p in bench.pauses if p["kind"] == kind]
        expected = sum(1 for other, _ in waiting if other == kind)
        told = sum(1 for p in mine if p["held_ns"] is not None)
        good = sum(1 for p in mine if p["goes_on"] and p["operations"])
        bench.check(kind, good == told == expected, f"{expected} processes: {told} had a library loaded, {good} went on and were recorded")
    if failures:
        bench.check("all of them", False, "; ".join(failures)[:400])


def spin(condition, process, seconds=4):
    """Until the condition holds, without sleep: what comes next shall hit it. False when it never did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if condition():
            return True
    return False


# When to kill gdiag: how long, at the most, after what.
MOMENTS = {"a thread is traced": 0.003, "there is a new thread": 0.03, "the library is mapped": 0.05, "its start": 1.5}


class Kills:
    """Rounds of kill -9 against a process, and what was seen after each."""

    def __init__(self, bench):
        self.bench, self.counts, self.harm = bench, collections.Counter(), []

    def round(self, target, moment):
        threads = set(tasks(target.pid))
        recording = Recording(self.bench, f"kill-{self.counts.total()}", "-p", target.pid)
        condition = {
            "a thread is traced": lambda: held_threads(target.pid),
            "there is a new thread": lambda: set(tasks(target.pid)) - threads,
            "the library is mapped": lambda: mapped(target.pid, "memfd:"),
            "its start": lambda: True,
        }[moment]
        seen = spin(condition, recording.process)
        time.sleep(self.bench.random.uniform(0, MOMENTS[moment]))
        recording.kill()
        when = f"killed {(now() - recording.begin) / 1e6:.0f} ms after its start, {'after' if seen else 'never saw that'} {moment}"
        self.counts[moment if seen else "too late"] += 1
        self.bench.log.write(f"{when}: {tail(recording.stderr())}\n")
        time.sleep(0.1)
        held = held_threads(target.pid)
        if held:
            self.harm.append(f"{when}: {held[:3]}")
        if not target.goes_on():
            self.harm.append(f"{when}: {'no step in 5 s' if target.alive() else f'ended with status {target.process.poll()}'}")
        recording.drop()

    def told(self):
        rounds = ", ".join(f"{count} after {moment}" if moment in MOMENTS else f"{count} {moment}" for moment, count in self.counts.items())
        return f"{self.counts.total()} kills, {rounds}; harm: {'; '.join(self.harm)[:300] or 'none'}"


def part_kill(bench):
    quick = bench.args.quick
    fresh = [bench.start_load("-H") for _ in range(4 if quick else 16)]
    loop = None if quick else bench.start_loop("--hold")
    for target in fresh:
        target.wait("ready")

    kills, recorded = Kills(bench), []
    for number, target in enumerate(fresh):
        try:
            target.go()
            kills.round(target, list(MOMENTS)[number % len(MOMENTS)])
            after = bench.record(f"kill-then-{number}", "-p", target.pid, seconds=0.8, target=target)
            recorded.append(after.operations() > 0)
            after.drop()
            target.finish()
        except Failed as why:
            kills.harm.append(str(why))
    bench.check("fresh processes", not kills.harm, kills.told())
    bench.check("recorded afterwards", len(recorded) == len(fresh) and all(recorded), f"{sum(recorded)} of {len(fresh)} processes")
    if not loop:
        return

    loop.wait("ready").go()
    time.sleep(1.5)
    kills = Kills(bench)
    begin = now()
    for number in range(8):
        # The first rounds meet a process that gdiag was never in; then it is there already.
        kills.round(loop, "its start" if number > 1 else list(MOMENTS)[number])
        time.sleep(0.1)
    end = now()
    time.sleep(1.5)
    quiet = now()
    after = bench.record("kill-then-loop", "-p", loop.pid, seconds=1, target=loop)
    result = loop.finish()
    bench.window("before", loop, loop.ready_at + SECOND // 5, begin)
    bench.window("in 8 rounds", loop, begin, end)
    bench.window("0.5 s after", loop, end + SECOND // 2, quiet)
    bench.around("recorded", loop, after)
    bench.check("one training loop", not kills.harm, kills.told())
    bench.check_recording("loop recorded afterwards", after)
    same_so_far(bench, "same losses", result)


def nvcc():
    return shutil.which("nvcc") or next((path for root in toolkit.roots() for path in [f"{root}/bin/nvcc"] if os.path.exists(path)), None)


def plain_running(bench):
    target = bench.start_load().wait("ready")
    before = mapped(target.pid, "libcupti")
    recording = bench.record("plain-driver", "-p", target.pid, seconds=1.5, target=target)
    cupti = mapped(target.pid, "libcupti")
    goes_on = target.goes_on()
    target.finish()
    bench.check_recording("driver only", recording)
    none_before = not before or bench.args.driver != "torch"  # the simulated driver comes with one
    bench.check("driver only: CUPTI", goes_on and none_before, f"mapped before: {before or 'none'}, after: {cupti or 'none'}")


def plain_runtime(bench):
    if bench.args.driver != "torch":
        raise Skip("needs CUDA's toolkit")
    if not nvcc():
        raise Skip("no nvcc")
    program = bench.tmp + "/attachrt"
    built = bench.run([nvcc(), "-O2", os.path.join(toolkit.HERE, "attachrt.cu"), "-o", program, *toolkit.rpath_flags("-Xlinker=")], 90)
    if built.returncode:
        raise Failed(f"nvcc: {tail(built.stderr)}")
    target = Target(bench, "runtime", [program]).wait("ready")
    recording = bench.record("plain-runtime", "-p", target.pid, seconds=1.5, target=target)
    target.finish()  # its status is that of its result
    bench.check_recording("static runtime", recording)


def begun_later(bench, name, target, go_after=1.0, seconds=1.5):
    """A process that is recorded before it has anything to do with the GPU: from which step on is it seen?"""
    target.wait("ready")
    recording = Recording(bench, name, "-p", target.pid)
    time.sleep(go_after)
    target.go()
    time.sleep(seconds)
    recording.stop().read()
    pid = int(read(target.path("child"), str(target.pid)))
    result = target.finish()
    first, times = recording.first_ns(), target.times()
    launches = recording.launches(pid)
    at = f"the first {(first - times[0]) / 1e6:+.1f} ms from the end of its first step" if first and times else "no operation"
    bench.check(name, bool(recording.operations() and launches and recording.status == 0),
                f"{recording.operations()} kernels, {launches} launches of process {pid}, {at}; source {recording.source()}, lost {recording.losses()}"
                + "".join(f"; {line}" for line in recording.warnings()[:2])[:300])
    return result


def part_plain(bench):
    ways = {
        "driver only": lambda: plain_running(bench),
        "before the first call": lambda: begun_later(bench, "before the first call", bench.start_load("-L")),
        "static runtime": lambda: plain_runtime(bench),
        "before torch is loaded": lambda: same_so_far(bench, "before torch is loaded: losses",
                                                      begun_later(bench, "before torch is loaded", bench.start_loop("--late"))),
    }
    for name, way in ways.items():
        try:
            way()
        except Failed as why:
            bench.check(name, False, str(why))
        except Skip as why:
            bench.check(name, None, f"skipped: {why}")


def part_engine(bench):
    begun_later(bench, "spawned", bench.start_loop("--engine", name="engine"), seconds=2.5)


def names(pid):
    return [read(f"/proc/{pid}/task/{tid}/comm", "").strip() for tid in tasks(pid)]


def part_probes(bench):
    loop = bench.start_loop().wait("ready")
    time.sleep(1.5)
    probed = bench.record("probes", "--no-inject", "-p", loop.pid, seconds=3, target=loop)
    untouched = not any("gdiag" in name for name in names(loop.pid))
    bench.record_to_keep("probes", "--no-inject", "-p", loop.pid)
    bench.window("before", loop, loop.ready_at + SECOND // 5, probed.begin)
    bench.window("attach", loop, probed.begin, probed.begin + SECOND, True)
    bench.window("probed", loop, probed.begin + SECOND, probed.ended_ns())
    calls = probed.report.get("calls") or []
    shown_calls = ", ".join(f"{call['name']} {call['count']}" for call in sorted(calls, key=lambda call: -call["count"])[:4])
    bench.check("by probes", probed.status == 0 and probed.source() == "uprobe" and bool(calls),
                f"source {probed.source()}; {shown_calls or 'no calls'}; lost {probed.losses()}")
    bench.check("by probes: nothing inside", untouched, "no thread of gdiag in the process" if untouched else f"threads: {names(loop.pid)}")
    for line in probed.warnings()[:3]:
        bench.check("by probes: said", None, line[:200])
    if bench.args.driver == "torch":
        taken(bench, loop)
    same_so_far(bench, "same losses", loop.finish())


def taken(bench, loop):
    """torch.profiler has CUPTI when gdiag comes."""
    time.sleep(0.5)
    loop.ask_profile(170)  # of more, its buffers would not hold all
    loop.wait("profiling", 30)
    recording = bench.record("probes-taken", "-p", loop.pid, seconds=0.6, target=loop)
    in_it = os.path.exists(loop.path("profiling"))
    profile = loop.profiled(90)
    a_step = device_events(loop.profile(20)) / 20  # no gdiag meanwhile
    seen = device_events(profile)
    bench.check("torch.profiler recorded meanwhile", seen == a_step * profile["steps"] > 0,
                f"{seen} device events in {profile['steps']} steps, {a_step * profile['steps']:.0f} are due{'' if in_it else '; it ended before gdiag did'}")
    said = [line for line in recording.stderr().splitlines() + recording.warnings() if "CUPTI" in line]
    bench.check("gdiag meanwhile", bool(said) or recording.operations() > 0,
                f"source {recording.source()}, {recording.operations()} kernels; {said[0][:250] if said else 'says nothing of CUPTI'}")
    again = bench.record("probes-again", "-p", loop.pid, seconds=1, target=loop)
    bench.check("gdiag after torch.profiler", None, f"source {again.source()}, {again.operations()} kernels; {'; '.join(again.warnings())[:200]}")


def cgroup_root():
    for line in read("/proc/self/mounts").splitlines():
        if line.split()[2] == "cgroup2":
            return line.split()[1]
    raise Skip("no cgroup v2")


def in_namespace(pid):
    found = re.search(r"^NSpid:(.*)$", read(f"/proc/{pid}/status", ""), re.M)
    return bool(found) and len(found[1].split()) > len(re.search(r"^NSpid:(.*)$", read("/proc/self/status"), re.M)[1].split())


def remove_cgroup(path):
    deadline = time.monotonic() + 3
    while True:
        try:
            return os.rmdir(path)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def part_cgroup(bench):
    path = f"{cgroup_root()}/gdiag-attach.{os.getpid()}"
    try:
        os.mkdir(path)
    except OSError as error:
        raise Skip(f"cgroup v2: {error}") from error
    bench.undo.append(lambda: remove_cgroup(path))
    enter = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', path]
    apart = ["unshare", "-mpf", "--mount-proc"]
    if not shutil.which("unshare") or bench.run([*apart, "true"], 10).returncode:
        apart = []
        bench.check("namespaces", None, "skipped: no unshare -mpf --mount-proc")
    loop = bench.start_loop(wrap=[*enter, *apart]).wait("ready")
    members = [int(line) for line in read(path + "/cgroup.procs").split()]
    pid = next((member for member in members if in_namespace(member)), None) if apart else loop.pid
    if pid is None:
        raise Failed(f"no process of another PID namespace in the cgroup: {members}")
    time.sleep(1)
    by_pid = bench.record("cgroup-pid", "-p", pid, seconds=2)
    held = held_threads(pid)
    time.sleep(0.5)
    late = Recording(bench, "cgroup-group", "--cgroup", path, seconds=3)
    time.sleep(1)
    other = bench.start_load(wrap=enter).wait("ready")
    group = late.wait().read()
    tids = tasks(pid)
    other.finish()
    result = loop.finish()

    bench.window("before", loop, loop.ready_at + SECOND // 5, by_pid.begin)
    bench.around("-p", loop, by_pid)
    bench.around("--cgroup", loop, group)
    for name, recording in (("-p of the host's number", by_pid), ("--cgroup", group)):
        bench.check_recording(name, recording)
        launching = [(thread["pid"], thread["tid"]) for thread in recording.report.get("threads") or [] if thread["launches"] and thread["pid"] != other.pid]
        right = bool(launching) and all(process == pid and thread in tids for process, thread in launching)
        bench.check(f"{name}: threads", right and not held, f"launches by {launching[:4]}, process {pid}, threads {sorted(tids)[:4]}...; held: {held or 'none'}")
    bench.check("--cgroup: a late member", group.launches(other.pid) > 0, f"{group.launches(other.pid)} launches of process {other.pid}, which began in the recording")
    same_so_far(bench, "same losses", result)


def part_threads(bench):
    bench.need_torch()
    loop = bench.start_loop("--mode", "threads").wait("ready")
    time.sleep(1.5)
    recording = bench.record("threads", "-p", loop.pid, seconds=3, target=loop)
    time.sleep(1.5)
    again = bench.record("threads-again", "-p", loop.pid, seconds=1, target=loop)
    time.sleep(1)
    ended = now()
    result = loop.finish()
    bench.window("before", loop, loop.ready_at + SECOND // 5, recording.begin)
    bench.around("A", loop, recording)
    bench.window("between", loop, recording.end + SECOND // 5, again.begin)
    bench.around("B", loop, again)
    bench.window("after", loop, again.end + SECOND // 5, ended)
    bench.check_recording("A", recording)
    bench.check_recording("B", again)
    complaints = [line for line in read(loop.err, "").splitlines() if "killed" in line or "Error" in line]
    entered = [pid for pid in (int(found[0]) for found in INJECTED.findall(recording.stderr() + again.stderr())) if pid != loop.pid]
    bench.check("workers", not complaints, f"{result['workers']} worker processes in turn, of which gdiag entered {len(entered)}; "
                f"{tail(' '.join(complaints)) or 'no complaint'}")

    alone = bench.start_loop("--mode", "threads", "--steps", result["steps"], name="alone").wait("ready")
    reference = alone.result(60)
    bench.window("run alone", alone, alone.ready_at + SECOND // 5, now())
    same_result(bench, result, reference)


def part_dormant(bench):
    installed = bench.run([GDIAG, "shim", "install", bench.tmp + "/shim"], 20)
    shims = [name for name in os.listdir(bench.tmp + "/shim") if name.endswith(".so")] if os.path.isdir(bench.tmp + "/shim") else []
    if installed.returncode or not shims:
        raise Failed(f"gdiag shim install: {tail(installed.stderr)}")
    asleep = {"CUDA_INJECTION64_PATH": f"{bench.tmp}/shim/{shims[0]}"}
    eager = bench.start_loop, ("--mode", "measure"), 20_000
    launches = bench.start_load, ("-m",), 60_000
    rounds = 5
    for kind, (start, options, calls) in (("C launch", launches), ("eager add_", eager)):
        bare, dormant, injected = start(*options), start(*options, env=asleep), start(*options)
        for target in (bare, dormant, injected):
            target.wait("ready")
            target.measure(calls)
        found = collections.defaultdict(list)

        def pair(row, target):
            found[row].append((target.measure(calls), bare.measure(calls)))

        for _ in range(rounds):
            pair("carried, asleep", dormant)
            pair("injected: before", injected)
        for number in range(rounds):
            recording = Recording(bench, f"dormant-{number}", "-p", injected.pid)
            time.sleep(1.2)
            pair("injected: during", injected)
            recording.stop()
            recording.drop()
            time.sleep(0.7)
            pair("injected: after", injected)
        for target in (bare, dormant, injected):
            target.finish()
        for row, pairs in found.items():
            value, ratio = (statistics.median(numbers) for numbers in ([a for a, _ in pairs], [a / b for a, b in pairs]))
            bench.check(f"{kind}: {row}", None,
                        f"{value:8.0f} ns, bare {statistics.median(b for _, b in pairs):8.0f} ns, {ratio:6.3f} times; {len(pairs)} rounds")


# What to do; the time that it takes at the most; and the least that must be left to begin it.
PARTS = {
    "eager": (part_eager, 120, 50),
    "graph": (part_graph, 120, 50),
    "pause": (part_pause, 150, 70),
    "kill": (part_kill, 140, 70),
    "plain": (part_plain, 90, 40),
    "engine": (part_engine, 50, 25),
    "probes": (part_probes, 90, 40),
    "cgroup": (part_cgroup, 60, 25),
    "threads": (part_threads, 90, 40),
    "dormant": (part_dormant, 120, 60),
}
QUICK = ["eager", "pause", "kill"]


def facts(bench):
    say(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, CUDA_INJECTION64_PATH={os.environ.get('CUDA_INJECTION64_PATH')}")
    say(f"ptrace_scope {read('/proc/sys/kernel/yama/ptrace_scope', 'none').strip()}; nvcc {nvcc()}; {bench.run([GDIAG, '--version'], 10).stdout.strip()}")
    if bench.args.driver == "torch":
        done = bench.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], 20) if shutil.which("nvidia-smi") else None
        say(done.stdout.strip() if done else "no nvidia-smi")
        # Also so that no part waits for a cold disk.
        begin = time.monotonic()
        done = bench.run([*LOOP[:1], "-c", "import torch; print(torch.__version__, torch.zeros(1, device='cuda').device)"], 120)
        say(f"torch: {done.stdout.strip() or tail(done.stderr)} ({time.monotonic() - begin:.1f} s)")


def run_part(bench, name):
    part, most, least = PARTS[name]
    bench.part = name
    if bench.args.quick:
        least /= 3
    if bench.left() < least:
        return bench.check("all", None, f"skipped: {bench.left():.0f} s are left")
    begin = time.monotonic()
    say(f"== {name}, {bench.left():.0f} s left")
    signal.alarm(max(int(min(most, bench.left() + 10)), 1))
    try:
        part(bench)
    except Skip as why:
        bench.check("all", None, f"skipped: {why}")
    except Failed as why:
        bench.check("all", False, str(why))
    except OutOfTime:
        bench.check("all", False, f"no end within {time.monotonic() - begin:.0f} s")
    except Exception as error:  # one part must not end the others
        bench.check("all", False, f"{error!r} at line {error.__traceback__.tb_next.tb_lineno if error.__traceback__.tb_next else '?'}")
    finally:
        signal.alarm(0)
        bench.clear()
    return say(f"  {name}: {time.monotonic() - begin:.0f} s")


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--quick", action="store_true", help=f"{', '.join(QUICK)} in small, within 90 s")
    args.add_argument("--only", default="", help="parts")
    args.add_argument("--budget", type=float, default=540, help="seconds for everything")
    args.add_argument("--keep", metavar="DIR", help="keep recordings of a second of the loops there, of at most 16 MiB each")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("--seed", type=int, default=4)
    args = args.parse_args()
    wanted = list(filter(None, args.only.split(","))) or (QUICK if args.quick else list(PARTS))
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not os.access(GDIAG, os.X_OK):
        sys.exit(f"{GDIAG}: no such program; set GDIAG")
    signal.signal(signal.SIGALRM, on_alarm)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    bench = Bench(args)
    try:
        facts(bench)
        for name in wanted:
            run_part(bench, name)
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
