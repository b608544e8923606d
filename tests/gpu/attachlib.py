"""Processes to attach to, recordings of them, and tables of what was seen: what the parts of attach.py share."""

import json
import os
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
        subprocess.run(["gcc", "-O2", "-Wall", os.path.join(toolkit.HERE, "attachload.c"), "-o", self.load, "-ldl", *toolkit.rpath_flags()], check=True, timeout=60)

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

    def record_to_keep(self, name, *options):
        """A recording of a second, as data for tests."""
        if self.args.keep:
            self.keep(Recording(self, f"attach-{name}", *options, seconds=1).wait(), name)

    def keep(self, recording, name):
        size = os.path.getsize(recording.data) if self.args.keep and os.path.exists(recording.data) else 0
        if 0 < size <= KEEP_MOST:
            os.makedirs(self.args.keep, exist_ok=True)
            shutil.copyfile(recording.data, f"{self.args.keep}/attach-{name}.data")
        if self.args.keep:
            say(f"  attach-{name}.data: {size} bytes{'' if 0 < size <= KEEP_MOST else ': left out'}")

    def need_torch(self):
        if self.args.driver != "torch":
            raise Skip("needs torch")


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
        lines += ["", f"{'pause, ms (median / max)':24}{'n':>3}{'library loaded in':>20}{'thread held':>17}{'of 10 ms':>17}{'step':>8}"
                  f"{'longest at attach':>20}{'at detach':>18}{'first record':>16}"]
    for kind in dict.fromkeys(p["kind"] for p in bench.pauses):
        mine = [p for p in bench.pauses if p["kind"] == kind]
        loaded, held, attach, detach = (middle_and_most(p[key] for p in mine) for key in ("loaded_ns", "held_ns", "attach_max_ns", "detach_max_ns"))
        steady, _ = middle_and_most(p["steady_ns"] for p in mine)
        first = middle_and_most(p["first_ms"] and p["first_ms"] * 1e6 for p in mine)
        share = " / ".join("-" if ns is None else f"{ns / 1e7:.2%}" for ns in held)

        def both(pair, width):
            return f"{' / '.join(map(ms, pair)):>{width}}"

        lines.append(f"{kind:24}{len(mine):3}{both(loaded, 20)}{both(held, 17)}{share:>17}{ms(steady):>8}{both(attach, 20)}{both(detach, 18)}"
                     f"{' / '.join('-' if ns is None else f'{ns / 1e6:.0f}' for ns in first):>16}")
    failed = sum(row["pass"] is False for row in bench.rows)
    lines += ["", f"{sum(row['pass'] is True for row in bench.rows)} passed, {failed} failed; {time.monotonic() - bench.begin:.0f} s"]
    return "\n".join(lines)


def write_results(bench):
    with open(bench.out + "/attach.json", "w") as file:
        json.dump({"rows": bench.rows, "windows": bench.windows, "pauses": bench.pauses}, file, indent=1)
    with tarfile.open(bench.out + "/reports.tar.gz", "w:gz") as tar:
        for name, content in sorted(bench.reports.items()):
            path = os.path.join(bench.tmp, "report")
            with open(path, "w") as file:
                file.write(content)
            tar.add(path, name)
