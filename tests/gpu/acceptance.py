#!/usr/bin/env python3
"""Records PyTorch jobs with one known reason for an idle GPU each, and checks that the report names it first.

  acceptance.py [--seconds 6] [--only NAME[,NAME]]       names: the rows of the tables

GDIAG names the binary (default: target/release/gdiag). Needs root, a GPU, and a python3 with torch. Writes to $OUT (or
target/gpu): acceptance.log with every command and all it said, reports.tar.gz with every report as text and JSON,
recordings.tar with short recordings of the same jobs, and acceptance.json. Prints two tables last; the exit status
is 1 when a row failed.
"""

import argparse
import glob
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time

import toolkit
from toolkit import say

REPO = os.path.abspath(os.path.join(toolkit.HERE, "../.."))
GDIAG = os.environ.get("GDIAG", os.path.join(REPO, "target/release/gdiag"))
TRAIN = [sys.executable, os.path.join(toolkit.HERE, "train_small.py")]
COEXIST = [sys.executable, os.path.join(toolkit.HERE, "profiler_coexist.py")]
HOG_CPU = str((os.cpu_count() or 2) - 1)

LAUNCHES = {"host.launch-bound", "host.compute"}
# name: mode, causes of which one must come first
JOBS = {
    "small": ("small", LAUNCHES),
    "item": ("item", {"host.sync"}),
    "item-small": ("item-small", LAUNCHES | {"host.sync"}),
    "loader": ("loader", {"host.data-loading"}),
    "hog": ("hog", {"host.preempted"}),
}


def last_json(text):
    for line in reversed((text or "").splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                pass
    return {}


class Bench:
    def __init__(self, seconds):
        self.out = toolkit.out_dir()
        self.tmp = tempfile.mkdtemp(prefix="acceptance-")
        self.log = open(self.out + "/acceptance.log", "w")
        self.seconds = seconds
        self.jobs, self.checks, self.kept = [], [], []
        done = self.run([GDIAG, "shim", "install", self.tmp + "/shim"])
        found = glob.glob(self.tmp + "/shim/*.so")
        self.shim = found[0] if found and done.returncode == 0 else None

    def run(self, command, timeout=90, **options):
        """Runs to the end; everything said goes to the log."""
        t0 = time.monotonic()
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, **options)
        except subprocess.TimeoutExpired as late:
            done = subprocess.CompletedProcess(command, 124, *[(s or b"").decode(errors="replace") for s in (late.stdout, late.stderr)])
        self.write(command, done, time.monotonic() - t0)
        return done

    def write(self, command, done, took):
        said = done.stdout if len(done.stdout) < 30000 else done.stdout[:30000] + "…\n"
        self.log.write(f"$ {' '.join(command)}\n{said}{done.stderr}status {done.returncode}, {took:.1f} s\n\n")
        self.log.flush()

    def report(self, data, name):
        """The report as JSON, or {}; text and JSON are kept."""
        text = self.run([GDIAG, "report", "-i", data])
        full = self.run([GDIAG, "report", "-i", data, "--json"])
        for suffix, content in ((".txt", text.stdout + text.stderr), (".json", full.stdout)):
            self.kept.append((f"{name}{suffix}", content))
        try:
            return json.loads(full.stdout)
        except ValueError:
            say(f"{name}: no report: {text.stderr.strip() or full.stderr.strip()}")
            return {}

    def job(self, name, report, expected, bare=None, traced=None, size=0):
        gpus = report.get("gpus") or [{}]
        gpu = max(gpus, key=lambda g: g.get("window_ns") or 0)
        causes = gpu.get("causes") or []
        first = causes[0]["id"] if causes else None
        quality = report.get("quality") or {}
        window, idle = gpu.get("window_ns"), gpu.get("idle_ns")
        self.jobs.append({
            "name": name,
            "pass": first in expected,
            "causes": [(c["id"], c["share"]) for c in causes[:3]],
            "idle": idle / window if window and idle is not None else None,
            "explained": gpu.get("idle_explained"),
            "sums_exact": idle is not None and sum(c["ns"] for c in causes) == idle,
            "coverage": quality.get("gpu_coverage"),
            "invalid": quality.get("invalid_gpu_records"),
            "unmatched": quality.get("unmatched_gpu_records"),
            "lost": [quality.get(k) for k in ("bpf_lost", "shim_lost", "cupti_lost")],
            "clock_error_ns": quality.get("max_clock_error_ns"),
            "steps_s": [bare, traced],
            "mb": size / 1e6,
            "warnings": quality.get("warnings"),
        })

    def check(self, name, passed, detail):
        self.checks.append({"name": name, "pass": passed, "detail": detail})


def launched(bench, name):
    mode, expected = JOBS[name]
    train = TRAIN + ["--mode", mode, "--seconds", str(bench.seconds)]
    hogs = []
    if mode == "hog":
        train += ["--cpu", HOG_CPU]
        hogs = [subprocess.Popen(TRAIN + ["--be-hog", "--cpu", HOG_CPU]) for _ in range(2)]
    try:
        bare = last_json(bench.run(train).stdout)
        data = f"{bench.tmp}/{name}.data"
        traced = last_json(bench.run([GDIAG, "record", "-o", data, "--"] + train).stdout)
        short = f"{bench.tmp}/h200-{name}.data"
        steps = ["--steps", "8" if mode == "loader" else "40", "--warm-up", "3"]
        bench.run([GDIAG, "record", "-o", short, "--"] + train + steps)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    size = os.path.getsize(data) if os.path.exists(data) else 0
    bench.job(name, bench.report(data, name), expected, bare.get("steps_s"), traced.get("steps_s"), size)
    bench.report(short, "h200-" + name)


def start_with_shim(bench, command):
    env = {**os.environ, "CUDA_INJECTION64_PATH": bench.shim}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, process, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def finish(bench, process, command, t0):
    try:
        stdout, stderr = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
    bench.write(command, subprocess.CompletedProcess(command, process.returncode, stdout, stderr), time.monotonic() - t0)
    return last_json(stdout)


def attached(bench):
    """A process that carries the dormant shim is recorded in its steady state."""
    ready, data, t0 = bench.tmp + "/ready", bench.tmp + "/attached.data", time.monotonic()
    command = TRAIN + ["--mode", "item", "--seconds", "7", "--ready", ready]
    process = start_with_shim(bench, command)
    if wait_for(lambda: os.path.exists(ready), process):
        time.sleep(1)
        bench.run([GDIAG, "record", "-o", data, "-p", str(process.pid), "--", "sleep", "3"])
    finish(bench, process, command, t0)
    size = os.path.getsize(data) if os.path.exists(data) else 0
    bench.job("attached", bench.report(data, "attached"), {"host.sync"}, size=size)


def killed(bench):
    """gdiag is killed while it records: the job goes on at its own speed within a second."""
    ready, t0 = bench.tmp + "/ready-kill", time.monotonic()
    command = TRAIN + ["--mode", "small", "--seconds", "10", "--ready", ready]
    process = start_with_shim(bench, command)
    gdiag = None
    if wait_for(lambda: os.path.exists(ready), process):
        time.sleep(3)
        gdiag = subprocess.Popen([GDIAG, "record", "-q", "-o", bench.tmp + "/killed.data", "-p", str(process.pid)],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(3)
        gdiag.kill()
        gdiag.wait()
    rates = finish(bench, process, command, t0).get("rates") or []
    if gdiag is None or len(rates) < 20:
        bench.check("killed", False, "the job did not run")
        return
    before, during, after = (sum(rates[a:b]) * 2 / (b - a) for a, b in ((1, 5), (8, 11), (15, 19)))
    detail = f"steps/s {before:.0f} before, {during:.0f} recorded, {after:.0f} from 1.5 s after kill -9"
    bench.check("killed", after > 0.93 * before, detail)


def profiler_dormant(bench):
    """torch.profiler in a process whose shim sleeps."""
    done = bench.run(COEXIST + ["--expect-events"], env={**os.environ, "CUDA_INJECTION64_PATH": bench.shim})
    events = last_json(done.stdout).get("cuda_events")
    bench.check("profiler-dormant", done.returncode == 0 and bool(events), f"CUDA events of each session: {events}")


def profiler_recorded(bench):
    """torch.profiler starts while gdiag records: what each of them got, and whether gdiag says so."""
    data = bench.tmp + "/profiler.data"
    done = bench.run([GDIAG, "record", "-o", data, "--"] + COEXIST)
    events = last_json(done.stdout).get("cuda_events")
    quality = bench.report(data, "profiler-recorded").get("quality") or {}
    said = [w for w in quality.get("warnings") or [] if "CUPTI" in w] + [s for s in done.stderr.splitlines() if "CUPTI" in s]
    detail = f"torch: {events} CUDA events; gdiag: coverage {quality.get('gpu_coverage')}; {said[0] if said else 'says nothing of CUPTI'}"
    bench.check("profiler-recorded", done.returncode == 0 and bool(said), detail)


def profiler_first(bench):
    """gdiag attaches to a process in which torch.profiler ran before."""
    stop, data, t0 = bench.tmp + "/stop", bench.tmp + "/first.data", time.monotonic()
    command = COEXIST + ["--sessions", "1", "--wait", stop]
    process = start_with_shim(bench, command)
    line = process.stdout.readline()  # printed after the session
    done = bench.run([GDIAG, "record", "-o", data, "-p", str(process.pid), "--", "sleep", "2"])
    open(stop, "w").close()
    finish(bench, process, command, t0)
    report = bench.report(data, "profiler-first")
    operations = sum(k["count"] for k in report.get("kernels") or [])
    warnings = (report.get("quality") or {}).get("warnings") or []
    said = [s for s in done.stderr.splitlines() + warnings if "CUPTI" in s]
    detail = f"torch: {last_json(line).get('cuda_events')}; gdiag: status {done.returncode}, {operations} kernels; {said[0] if said else 'says nothing of CUPTI'}"
    bench.check("profiler-first", operations > 0 or bool(said), detail)


CHECKS = {"attached": attached, "killed": killed, "profiler-dormant": profiler_dormant,
          "profiler-recorded": profiler_recorded, "profiler-first": profiler_first}


def number(value, scale=1.0, digits=1, none="-"):
    return none if value is None else f"{value * scale:.{digits}f}"


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--seconds", type=float, default=6.0)
    args.add_argument("--only")
    args = args.parse_args()
    if not os.access(GDIAG, os.X_OK):
        sys.exit(f"{GDIAG}: no such program; set GDIAG")
    bench = Bench(args.seconds)
    wanted = args.only.split(",") if args.only else [*JOBS, *CHECKS]
    t0 = time.monotonic()
    for name in wanted:
        if name in JOBS:
            launched(bench, name)
        elif name in CHECKS and bench.shim:
            CHECKS[name](bench)
        else:
            bench.check(name, False, "gdiag shim install failed" if name in CHECKS else "no such row")
        say(f"{name}: {time.monotonic() - t0:.0f} s")

    with tarfile.open(bench.out + "/reports.tar.gz", "w:gz") as tar:
        for name, content in bench.kept:
            path = os.path.join(bench.tmp, name)
            with open(path, "w") as f:
                f.write(content)
            tar.add(path, name)
    with tarfile.open(bench.out + "/recordings.tar", "w") as tar:
        for path in sorted(glob.glob(bench.tmp + "/h200-*.data")):
            tar.add(path, os.path.basename(path))
            say(f"{os.path.basename(path)}: {os.path.getsize(path)} bytes")
    with open(bench.out + "/acceptance.json", "w") as f:
        json.dump({"jobs": bench.jobs, "checks": bench.checks}, f, indent=1)

    print(f"\n{'job':11}{'':5}{'idle%':>6}{'expl%':>6}{'sums':>5}{'cover%':>8}{'inval':>6}{'unm':>5}{'lost b/s/c':>11}{'clk us':>7}"
          f"{'bare':>7}{'gdiag':>7}{'MB':>6}  causes (share of idle)")
    for j in bench.jobs:
        causes = ", ".join(f"{c} {s:.0%}" for c, s in j["causes"])
        lost = "/".join("-" if n is None else str(n) for n in j["lost"])
        print(f"{j['name']:11}{'PASS' if j['pass'] else 'FAIL':5}{number(j['idle'], 100):>6}{number(j['explained'], 100):>6}"
              f"{'ok' if j['sums_exact'] else 'NO':>5}{number(j['coverage'], 100, 3):>8}{number(j['invalid'], 1, 0):>6}{number(j['unmatched'], 1, 0):>5}"
              f"{lost:>11}{number(j['clock_error_ns'], 1e-3, 2):>7}{number(j['steps_s'][0]):>7}{number(j['steps_s'][1]):>7}{j['mb']:6.1f}  {causes}")
        for warning in j["warnings"] or []:
            print(f"{'':11}warning: {warning}")
    for c in bench.checks:
        print(f"{c['name']:18}{'PASS' if c['pass'] else 'FAIL'}  {c['detail']}")
    sys.exit(0 if all(r["pass"] for r in bench.jobs + bench.checks) else 1)


if __name__ == "__main__":
    main()
