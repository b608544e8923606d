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

Writes to $OUT (or target/gpu): attach.log with every command and all it said, attach.json, attach.txt with the tables, and
reports.tar.gz. --keep DIR keeps recordings of a second. Prints the tables last; the exit status is 1 when a row failed.
"""

import argparse
import collections
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tarfile
import tempfile
import time

import toolkit

REPO = os.path.abspath(os.path.join(toolkit.HERE, "../.."))
GDIAG = os.environ.get("GDIAG", os.path.join(REPO, "target/release/gdiag"))
LOOP = [sys.executable, os.path.join(toolkit.HERE, "attach_loop.py")]

SECOND = 1_000_000_000
STARTS = 90  # a process with torch, from a cold disk
KEEP_MOST = 16 << 20
INJECTED = re.compile(r"process (\d+): library loaded in ([\d.]+) ?(\S+) through thread (\d+), which was held for ([\d.]+) ?(ns|us|µs|ms|s)\b")
NS = {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}

now = time.monotonic_ns


def say(*words):
    print(*words, flush=True)


class Failed(Exception):
    """A part cannot go on."""


class Skip(Exception):
    """A part cannot be done here."""


class OutOfTime(Exception):
    pass


def on_alarm(*_):
    raise OutOfTime


def read(path, default=None):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        if default is None:
            raise
        return default


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                pass
    return {}


def tail(text, most=200):
    return " ".join(text.split())[-most:]


def tasks(pid):
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def held_threads(pid):
    """Threads that are stopped or that somebody traces: what a dead gdiag must not leave behind."""
    held = []
    for tid in tasks(pid):
        status = read(f"/proc/{pid}/task/{tid}/status", "")
        state = re.search(r"^State:\s*(\S)", status, re.M)
        tracer = re.search(r"^TracerPid:\s*(\d+)", status, re.M)
        if state and state[1] in "Tt" or tracer and tracer[1] != "0":
            held.append(f"{tid} {state[1] if state else '?'} tracer {tracer[1] if tracer else '?'}")
    return held


def family(pid):
    """A process and what it started that lives, as far as the kernel tells."""
    found = [pid]
    for parent in found:
        for tid in tasks(parent):
            found += [int(child) for child in read(f"/proc/{parent}/task/{tid}/children", "").split()]
    return found


def mapped(pid, name):
    """Files of that name that a process has mapped."""
    return sorted({line.split()[-1] for line in read(f"/proc/{pid}/maps", "").splitlines() if name in line})


class Target:
    """A process to attach to, steered through a folder. See attach_loop.py and attachload.c."""

    def __init__(self, bench, name, command, wrap=(), env=None):
        self.bench, self.name = bench, name
        self.folder = tempfile.mkdtemp(prefix=f"{name}-", dir=bench.tmp)
        self.out, self.err = self.folder + "/stdout", self.folder + "/stderr"
        self.command = [str(word) for word in [*wrap, *command, self.folder]]
        with open(self.out, "w") as out, open(self.err, "w") as err:
            self.process = bench.popen(self.command, stdin=subprocess.PIPE, stdout=out, stderr=err,
                                       env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(env or {})})
        self.pid = self.process.pid
        self.ready_at = None

    def path(self, name):
        return os.path.join(self.folder, name)

    def put(self, name, text=""):
        with open(self.path(name) + ".new", "w") as file:
            file.write(text)
        os.rename(self.path(name) + ".new", self.path(name))

    def alive(self):
        return self.process.poll() is None

    def died(self, doing):
        return Failed(f"{self.name} ended with status {self.process.returncode} {doing}: {tail(read(self.err, ''))}")

    def until(self, condition, seconds, what):
        """Until the condition is something; an error when the process ends before, or the time does."""
        deadline = time.monotonic() + seconds
        while True:
            found = condition()
            if found:
                return found
            if not self.alive():
                raise self.died(f"before {what}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: {what}: not within {seconds} s: {tail(read(self.err, ''))}")
            time.sleep(0.005)

    def wait(self, name, seconds=STARTS):
        self.until(lambda: os.path.exists(self.path(name)), seconds, name)
        if name == "ready":
            self.ready_at = now()
        return self

    def go(self):
        self.put("go")
        before = self.count()
        self.until(lambda: self.count() > before + 20, STARTS, "20 steps")
        self.ready_at = now()

    def count(self):
        try:
            with open(self.path("series"), "rb") as file:
                return (struct.unpack("=Q", file.read(8) or bytes(8)))[0]
        except OSError:
            return 0

    def times(self):
        """When its steps ended."""
        try:
            with open(self.path("series"), "rb") as file:
                (count,) = struct.unpack("=Q", file.read(8))
                data = file.read(8 * count)
                return struct.unpack(f"={len(data) // 8}Q", data)
        except (OSError, struct.error):
            return ()

    def goes_on(self, steps=3, seconds=5):
        """Whether it makes so many steps more."""
        count, deadline = self.count(), time.monotonic() + seconds
        while self.count() < count + steps:
            if not self.alive() or time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def profile(self, steps, seconds=60):
        """What torch.profiler saw in its next steps."""
        self.ask_profile(steps)
        return self.profiled(seconds)

    def ask_profile(self, steps):
        if os.path.exists(self.path("profiled")):
            os.unlink(self.path("profiled"))
        self.put("profile", str(steps))

    def profiled(self, seconds=60):
        self.wait("profiled", seconds)
        return json.loads(read(self.path("profiled")))

    def measure(self, calls):
        """ns a call, of those that measure on demand."""
        lines = read(self.out).count("\n")
        self.process.stdin.write(f"{calls}\n".encode())
        self.process.stdin.flush()
        self.until(lambda: read(self.out).count("\n") > lines, 20, "its measurement")
        return last_json(read(self.out))["p50"]

    def finish(self, seconds=40):
        """Has it end. What it says of itself."""
        self.put("stop")
        return self.result(seconds)

    def result(self, seconds):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(seconds)
            self.bench.forget(self.process)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} does not end, {len(tasks(self.pid))} threads, held: {held_threads(self.pid)}") from None
        finally:
            self.bench.write(self.command, self.process.returncode, read(self.out, ""), read(self.err, ""))
        if self.process.returncode != 0:
            raise self.died("at its end")
        return last_json(read(self.out))


class Recording:
    """gdiag while it records, and what came of it."""

    def __init__(self, bench, name, *options, seconds=None):
        self.bench, self.name, self.seconds = bench, name, seconds
        self.data, self.said = f"{bench.tmp}/{name.replace(' ', '-')}.data", f"{bench.tmp}/{name.replace(' ', '-')}.stderr"
        limit = ["-d", f"{round(seconds * 1000)}ms"] if seconds else []
        self.command = [GDIAG, "record", "-v", *limit, "-o", self.data, *[str(option) for option in options]]
        self.report, self.status, self.end = {}, None, None
        self.begin = now()
        with open(self.said, "w") as said:
            self.process = bench.popen(self.command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def stop(self):
        """As Ctrl-C does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.wait(15)

    def kill(self):
        self.process.kill()
        self.process.wait(10)
        self.bench.forget(self.process)

    def wait(self, seconds=None):
        try:
            self.status = self.process.wait(seconds or self.seconds + 20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
            self.status = "did not end"
        self.end = now()
        self.bench.forget(self.process)
        self.bench.write(self.command, self.status, "", self.stderr())
        return self

    def stderr(self):
        return read(self.said, "")

    def read(self):
        """The report; its gaps are those of 50 µs, for a recording has one in each step."""
        text = self.bench.run([GDIAG, "report", "-i", self.data], 60)
        full = self.bench.run([GDIAG, "report", "-i", self.data, "--json", "--gaps", "all", "--min-gap", "50us"], 60, quiet=True)
        try:
            self.report = json.loads(full.stdout)
        except ValueError:
            raise Failed(f"{self.name}: record: status {self.status}, {tail(self.stderr())}; no report: {tail(full.stderr)}") from None
        self.bench.reports[self.name + ".txt"] = text.stdout + text.stderr
        brief = {**self.report, "gpus": [{**gpu, "gaps": gpu["gaps"][:20]} for gpu in self.report["gpus"]]}
        self.bench.reports[self.name + ".json"] = json.dumps(brief, indent=1)
        return self

    def drop(self):
        for path in (self.data, self.data + ".old"):
            if os.path.exists(path):
                os.unlink(path)

    def operations(self):
        return sum(kernel["count"] for kernel in self.report.get("kernels") or [])

    def launches(self, pid):
        return sum(thread["launches"] for thread in self.report.get("threads") or [] if thread["pid"] == pid)

    def source(self):
        return (self.report.get("recording") or {}).get("gpu_source")

    def started_ns(self):
        return (self.report.get("recording") or {}).get("start_ns") or self.begin

    def ended_ns(self):
        return (self.report.get("recording") or {}).get("end_ns") or self.end

    def first_ns(self):
        """When it had seen its first operation, at the latest: at the end of the first gap that one ended; else by when it
        knew of the device."""
        gpus = [gpu for gpu in self.report.get("gpus") or [] if gpu.get("window_ns")]
        ends = [gap["end_ns"] for gpu in gpus for gap in gpu["gaps"] if gap["next"]]
        if ends:
            return min(ends)
        return self.ended_ns() - max(gpu["window_ns"] for gpu in gpus) if gpus and self.operations() else None

    def injection(self):
        """(ns for all of it, ns that a thread was held), of the first process, if it says so."""
        found = INJECTED.search(self.stderr())
        return (float(found[2]) * NS.get(found[3], 1e6), float(found[5]) * NS[found[6]]) if found else None

    def warnings(self):
        return (self.report.get("quality") or {}).get("warnings") or []

    def losses(self):
        quality = self.report.get("quality") or {}
        return "/".join(str(quality.get(key)) for key in ("bpf_lost", "shim_lost", "cupti_lost", "invalid_gpu_records"))


class Bench:
    def __init__(self, args):
        self.args = args
        self.out = toolkit.out_dir()
        self.tmp = tempfile.mkdtemp(prefix="attach-")
        self.log = open(self.out + "/attach.log", "w")
        self.begin = time.monotonic()
        self.random = random.Random(args.seed)
        self.part = None
        self.processes, self.undo = [], []
        self.rows, self.windows, self.pauses, self.reports = [], [], [], {}
        self.reference = None  # the losses of an eager run alone, at each hundredth step
        self.load = self.tmp + "/attachload"
        subprocess.run(["gcc", "-O2", "-Wall", os.path.join(toolkit.HERE, "attachload.c"), "-o", self.load, "-ldl"], check=True, timeout=60)

    def left(self):
        return self.args.budget - (time.monotonic() - self.begin)

    def popen(self, command, **options):
        """In a session of its own, so that all that it starts ends with it; whatever is left is ended after the part."""
        process = subprocess.Popen(command, start_new_session=True, **options)
        self.processes.append(process)
        return process

    def run(self, command, seconds=60, quiet=False, **options):
        begin = time.monotonic()
        process = self.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", **options)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end(process)
            stdout, stderr = "", f"no end within {seconds} s"
        self.forget(process)
        self.write(command, process.returncode, "" if quiet else stdout, stderr, time.monotonic() - begin)
        return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)

    def write(self, command, status, stdout, stderr, took=None):
        took = f", {took:.1f} s" if took is not None else ""
        self.log.write(f"$ {' '.join(command)}\n{stdout[:8000]}{stderr[-8000:]}status {status}{took}\n\n")
        self.log.flush()

    def end(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            say(f"  process {process.pid} cannot be killed")

    def forget(self, process):
        """It has ended; now what it left behind does, while its number is certain to be its own."""
        self.end(process)
        if process in self.processes:
            self.processes.remove(process)

    def clear(self):
        for process in list(self.processes):
            self.forget(process)
        for step in reversed(self.undo):
            try:
                step()
            except OSError as error:
                say(f"  cleaning up: {error}")
        self.undo = []

    def check(self, name, passed, detail):
        """A row of the table. `passed` is None for what is no more than said."""
        self.rows.append({"part": self.part, "name": name, "pass": passed, "detail": detail})
        say("  " + shown(self.rows[-1]))

    def start_load(self, *options, name="load", **more):
        return Target(self, name, [self.load, *options], **more)

    def start_loop(self, *options, name="loop", **more):
        return Target(self, name, [*LOOP, "--driver", self.args.driver, *options], **more)

    def record(self, name, *options, seconds, target=None):
        recording = Recording(self, name, *options, seconds=seconds).wait()
        held = [thread for pid in family(target.pid) for thread in held_threads(pid)] if target else []
        if held:
            self.check(f"{name}: left alone", False, f"threads still held: {', '.join(held)}")
        return recording.read()

    def window(self, name, target, begin, end, overlapping=False):
        """Steps within a time, or all that touch it, as a row of the table."""
        times = target.times()
        inside = [b - a for a, b in zip(times, times[1:]) if (b > begin and a < end if overlapping else a >= begin and b <= end)]
        if not inside:
            return None
        inside.sort()
        row = {"part": self.part, "window": name, "steps": len(inside), "p50": statistics.median(inside),
               "p99": inside[len(inside) - 1 - len(inside) // 100], "max": inside[-1]}
        before = next((w["p50"] for w in self.windows if w["part"] == self.part and w["window"].endswith("before")), None)
        row["ratio"] = row["p50"] / before if before else None
        self.windows.append(row)
        return row

    def around(self, prefix, target, recording):
        """The steps at the attach, in the recording, and at its end."""
        first = min(recording.first_ns() or recording.end, recording.begin + 2 * SECOND)
        self.window(f"{prefix} attach", target, recording.begin, first + SECOND // 10, True)
        self.window(f"{prefix} during", target, first + SECOND // 10, recording.ended_ns())
        self.window(f"{prefix} detach", target, recording.ended_ns(), recording.end + SECOND // 10, True)

    def check_recording(self, name, recording, most_s=1.0):
        first = recording.first_ns()
        if first is None:
            why = "; ".join(recording.warnings()) or tail(recording.stderr())
            return self.check(name, False, f"status {recording.status}, {recording.operations()} kernels, source {recording.source()}: {why[:300]}")
        since_begin, since_start = (first - recording.begin) / 1e6, (first - recording.started_ns()) / 1e6
        coverage = (recording.report.get("quality") or {}).get("gpu_coverage")
        injection = recording.injection()
        loaded = f", loaded in {injection[0] / 1e6:.1f} ms, held {injection[1] / 1e3:.0f} us" if injection else ""
        passed = recording.status == 0 and since_begin < most_s * 1000 and recording.source() in ("cupti", "simulated")
        return self.check(name, passed, f"first GPU record after {since_begin:.0f} ms, {since_start:.0f} ms into the recording{loaded}; "
                          f"{recording.operations()} kernels, coverage {coverage if coverage is None else round(coverage, 4)}, lost {recording.losses()}")

    def keep(self, name, *options):
        """A recording of a second, as data for tests."""
        if not self.args.keep:
            return
        recording = Recording(self, f"attach-{name}", *options, seconds=1).wait()
        size = os.path.getsize(recording.data) if os.path.exists(recording.data) else 0
        if 0 < size <= KEEP_MOST:
            os.makedirs(self.args.keep, exist_ok=True)
            shutil.copyfile(recording.data, os.path.join(self.args.keep, os.path.basename(recording.data)))
        say(f"  attach-{name}.data: {size} bytes{'' if 0 < size <= KEEP_MOST else ': left out'}")

    def need_torch(self):
        if self.args.driver != "torch":
            raise Skip("needs torch")


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
    bench.keep(mode, "-p", loop.pid)
    profile = loop.profile(20) if torch else None
    time.sleep(1)
    result = loop.finish()
    ended = now()

    alone = bench.start_loop("--mode", mode, "--steps", result["steps"], name="alone").wait("ready")
    time.sleep(0.3)
    profile_alone = alone.profile(20) if torch else None
    reference = alone.result(60)

    bench.window("before", loop, loop.ready_at + SECOND // 5, first.begin)
    bench.around("A", loop, first)
    bench.window("between", loop, first.end + SECOND // 5, second.begin)
    bench.around("B", loop, second)
    bench.window("after", loop, second.end + SECOND // 5, quiet)
    if profile:
        bench.window("in torch.profiler", loop, profile["begin_ns"], profile["steps_end_ns"])
        bench.window("after torch.profiler", loop, profile["end_ns"] + SECOND // 5, ended)
    begin = profile_alone["end_ns"] if profile_alone else alone.ready_at
    bench.window("run alone", alone, begin + SECOND // 5, now())

    same_result(bench, result, reference)
    bench.check_recording("A", first)
    bench.check_recording("B", second)
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


def wait_injected(recording, seconds):
    """Seconds from the start of gdiag until it said that its library is loaded."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and recording.process.poll() is None:
        if INJECTED.search(recording.stderr()):
            return (now() - recording.begin) / SECOND
        time.sleep(0.001)
    return None


class Kills:
    """Rounds of kill -9 against a process, and what was seen after each."""

    def __init__(self, bench):
        self.bench, self.rounds, self.harm = bench, 0, []

    def round(self, target, delay):
        recording = Recording(self.bench, f"kill-{self.rounds}", "-p", target.pid)
        time.sleep(delay)
        recording.kill()
        self.rounds += 1
        said = "after the library was loaded" if INJECTED.search(recording.stderr()) else "before gdiag said that the library is loaded"
        self.bench.log.write(f"kill -9 after {delay * 1000:.0f} ms, {said}: {tail(recording.stderr())}\n")
        time.sleep(0.1)
        held = held_threads(target.pid)
        if held:
            self.harm.append(f"killed after {delay * 1000:.0f} ms: {held[:3]}")
        if not target.goes_on():
            self.harm.append(f"killed after {delay * 1000:.0f} ms: {'no step in 5 s' if target.alive() else f'ended with status {target.process.poll()}'}")
        recording.drop()
        return said.startswith("after")


def part_kill(bench):
    quick = bench.args.quick
    fresh = [bench.start_load("-H") for _ in range(5 if quick else 17)]
    loop = None if quick else bench.start_loop("--hold")
    for target in fresh:
        target.wait("ready")

    # When an attach comes to the process, so that most kills come then.
    target = fresh.pop()
    target.go()
    recording = Recording(bench, "kill-none", "-p", target.pid)
    at = wait_injected(recording, 5)
    recording.stop()
    target.finish()
    say(f"  the library is loaded after {'an unknown time' if at is None else f'{at * 1000:.0f} ms'}")

    kills, late, recorded = Kills(bench), 0, []
    for number, target in enumerate(fresh):
        near = at is not None and number % 4 != 3
        delay = bench.random.uniform(max(at - 0.2, 0), at + 0.03) if near else bench.random.uniform(0, 1.5)
        try:
            target.go()
            late += kills.round(target, delay)
            after = bench.record(f"kill-then-{number}", "-p", target.pid, seconds=0.8, target=target)
            recorded.append(after.operations() > 0)
            after.drop()
            target.finish()
        except Failed as why:
            kills.harm.append(str(why))
    bench.check("fresh processes", not kills.harm, f"{kills.rounds} kills, {late} of them after the library was loaded; harm: {'; '.join(kills.harm)[:300] or 'none'}")
    bench.check("recorded afterwards", len(recorded) == len(fresh) and all(recorded), f"{sum(recorded)} of {len(fresh)} processes")
    if not loop:
        return

    loop.wait("ready").go()
    time.sleep(1.5)
    kills = Kills(bench)
    begin = now()
    for _ in range(8):
        kills.round(loop, bench.random.uniform(0, 1.5))
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
    bench.check("one training loop", not kills.harm, f"{kills.rounds} kills; harm: {'; '.join(kills.harm)[:300] or 'none'}")
    bench.check_recording("recorded afterwards", after)
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
    built = bench.run([nvcc(), "-O2", os.path.join(toolkit.HERE, "attachrt.cu"), "-o", program], 90)
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
    bench.keep("probes", "--no-inject", "-p", loop.pid)
    bench.window("before", loop, loop.ready_at + SECOND // 5, probed.begin)
    bench.window("attach", loop, probed.begin, probed.begin + SECOND, True)
    bench.window("probed", loop, probed.begin + SECOND, probed.ended_ns())
    calls = probed.report.get("calls") or []
    shown_calls = ", ".join(f"{call['name']} {call['count']}" for call in sorted(calls, key=lambda call: -call["count"])[:4])
    bench.check("by probes", probed.status == 0 and probed.source() == "uprobe" and bool(calls), f"source {probed.source()}; {shown_calls or 'no calls'}; lost {probed.losses()}")
    bench.check("by probes: nothing inside", untouched, "no thread of gdiag in the process" if untouched else f"threads: {names(loop.pid)}")
    for line in probed.warnings()[:3]:
        bench.check("by probes: said", None, line[:200])
    if bench.args.driver == "torch":
        taken(bench, loop)
    same_so_far(bench, "same losses", loop.finish())


def taken(bench, loop):
    """torch.profiler has CUPTI when gdiag comes."""
    time.sleep(0.5)
    loop.ask_profile(250)
    loop.wait("profiling", 30)
    recording = bench.record("probes-taken", "-p", loop.pid, seconds=1, target=loop)
    in_it = os.path.exists(loop.path("profiling"))
    profile = loop.profiled(90)
    a_step = device_events(loop.profile(20)) / 20  # no gdiag meanwhile
    seen = device_events(profile)
    bench.check("torch.profiler recorded meanwhile", seen == a_step * profile["steps"] > 0,
                f"{seen} device events in {profile['steps']} steps, {a_step * profile['steps']:.0f} are due{'' if in_it else '; it ended before gdiag did'}")
    said = [line for line in recording.stderr().splitlines() + recording.warnings() if "CUPTI" in line]
    bench.check("gdiag meanwhile", bool(said) or recording.operations() > 0, f"source {recording.source()}, {recording.operations()} kernels; {said[0][:250] if said else 'says nothing of CUPTI'}")
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
    result = loop.finish()
    complaints = [line for line in read(loop.err, "").splitlines() if "killed" in line or "Error" in line]
    alone = bench.start_loop("--mode", "threads", "--steps", result["steps"], name="alone").wait("ready")
    reference = alone.result(60)
    bench.window("before", loop, loop.ready_at + SECOND // 5, recording.begin)
    bench.around("A", loop, recording)
    bench.window("between", loop, recording.end + SECOND // 5, again.begin)
    bench.around("B", loop, again)
    bench.window("after", loop, again.end + SECOND // 5, now())
    bench.window("run alone", alone, alone.ready_at + SECOND // 5, now())
    same_result(bench, result, reference)
    bench.check_recording("A", recording)
    bench.check_recording("B", again)
    entered = [pid for pid in (int(found[0]) for found in INJECTED.findall(recording.stderr() + again.stderr())) if pid != loop.pid]
    bench.check("workers", not complaints, f"{result['workers']} worker processes in turn, of which gdiag entered {len(entered)}; {tail(' '.join(complaints)) or 'no complaint'}")


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
            bench.check(f"{kind}: {row}", None, f"{value:8.0f} ns, bare {statistics.median(b for _, b in pairs):8.0f} ns, {ratio:6.3f} times; {len(pairs)} rounds")


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


def shown(row):
    mark = {True: "PASS", False: "FAIL", None: "-"}[row["pass"]]
    return f"{row['part']:8}{row['name']:36}{mark:5}{row['detail']}"


def ms(ns):
    return "-" if ns is None else f"{ns / 1e6:.3f}"


def middle_and_most(values):
    values = [value for value in values if value is not None]
    return (statistics.median(values), max(values)) if values else (None, None)


def tables(bench):
    lines = [f"{'part':8}{'row':36}"]
    lines += [shown(row) for row in bench.rows]
    if bench.windows:
        lines += ["", f"{'part':8}{'steps, ms':24}{'count':>7}{'median':>10}{'p99':>10}{'max':>10}{'of before':>11}"]
    for row in bench.windows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        lines.append(f"{row['part']:8}{row['window']:24}{row['steps']:7}{ms(row['p50']):>10}{ms(row['p99']):>10}{ms(row['max']):>10}{ratio:>11}")
    if bench.pauses:
        lines += ["", f"{'pause, ms (median / max)':22}{'n':>3}{'library loaded in':>20}{'thread held':>17}{'of 10 ms':>17}{'step':>8}{'longest at attach':>20}{'at detach':>18}{'first record':>16}"]
    for kind in dict.fromkeys(p["kind"] for p in bench.pauses):
        mine = [p for p in bench.pauses if p["kind"] == kind]
        loaded, held, attach, detach = (middle_and_most(p[key] for p in mine) for key in ("loaded_ns", "held_ns", "attach_max_ns", "detach_max_ns"))
        steady, _ = middle_and_most(p["steady_ns"] for p in mine)
        first = middle_and_most(p["first_ms"] and p["first_ms"] * 1e6 for p in mine)
        share = " / ".join("-" if ns is None else f"{ns / 1e7:.2%}" for ns in held)

        def both(pair, width):
            return f"{' / '.join(map(ms, pair)):>{width}}"

        lines.append(f"{kind:22}{len(mine):3}{both(loaded, 20)}{both(held, 17)}{share:>17}{ms(steady):>8}{both(attach, 20)}{both(detach, 18)}"
                     f"{' / '.join('-' if ns is None else f'{ns / 1e6:.0f}' for ns in first):>16}")
    failed = sum(row["pass"] is False for row in bench.rows)
    lines += ["", f"{sum(row['pass'] is True for row in bench.rows)} passed, {failed} failed; {time.monotonic() - bench.begin:.0f} s"]
    return "\n".join(lines)


def write_results(bench):
    with open(bench.out + "/attach.json", "w") as file:
        json.dump({"rows": bench.rows, "windows": bench.windows, "pauses": bench.pauses}, file, indent=1)
    with open(bench.out + "/attach.txt", "w") as file:
        file.write(tables(bench) + "\n")
    with tarfile.open(bench.out + "/reports.tar.gz", "w:gz") as tar:
        for name, content in sorted(bench.reports.items()):
            path = os.path.join(bench.tmp, "report")
            with open(path, "w") as file:
                file.write(content)
            tar.add(path, name)


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
    bench = Bench(args)
    try:
        facts(bench)
        for name in wanted:
            run_part(bench, name)
            write_results(bench)
    finally:
        bench.clear()
        write_results(bench)
        say("\n" + tables(bench))
        shutil.rmtree(bench.tmp, ignore_errors=True)
    sys.exit(1 if any(row["pass"] is False for row in bench.rows) else 0)


if __name__ == "__main__":
    main()
