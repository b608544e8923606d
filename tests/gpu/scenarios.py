#!/usr/bin/env python3
"""Injects known faults into PyTorch programs under `gdiag record`, and compares the reports with the truth.

  scenarios.py [--quick] [--only CASE[,CASE]] [--budget 420] [--score BIN] [--driver torch|cuda]

GDIAG names the binary (default: target/release/gdiag). Needs root, a GPU, gcc, and a python3 with torch (with --driver
cuda not: then a simulated GPU does, too). Cases are in faults_*.py; those of a group share a process, a recording and
its order of faults, and their twins, which must make no gap of that cause, another.

Writes to $OUT (or target/gpu): scenarios.tar.gz with each recording's NAME.report.json, NAME.report.txt and
NAME.truth.jsonl; golden.tar, recordings of one or two faults a case; scenarios.json; and scenarios.log with every command
and all it said. Prints a line for each case as it goes, and a table last. --score names a program that reads a folder of
reports and truths and prints its own (the example `score`). What cannot be done is skipped, and said. The exit status is
1 when a recording failed.
"""

import argparse
import bisect
import collections
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time

import toolkit

REPO = os.path.abspath(os.path.join(toolkit.HERE, "../.."))
GDIAG = os.environ.get("GDIAG", os.path.join(REPO, "target/release/gdiag"))
FAULTS = [sys.executable, os.path.join(toolkit.HERE, "faults.py")]

# Groups in the order of their worth, should the time run out; a recording's longest time in seconds.
GROUPS = {"host": 70, "cpu": 45, "engine": 45, "loader": 60, "server": 40, "cgroup": 60, "managed": 35, "shared": 40, "slow": 60,
          "network": 35, "devices": 40, "queue": 40, "frozen": 40}
FAILED = "FAILED"


def say(*words):
    print(*words, flush=True)


class Skip(Exception):
    pass


class Outside:
    """What a group needs that is no part of the recorded job. Ended whatever happens."""

    def __init__(self, bench):
        self.bench, self.undo = bench, []

    def start(self, *command, **options):
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=self.bench.log, stderr=self.bench.log, **options)
        self.undo.append(lambda: end(process))
        return process

    def close(self):
        for step in reversed(self.undo):
            try:
                step()
            except (OSError, subprocess.SubprocessError) as error:
                say(f"  cleaning up: {error}")


def end(process):
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(3)


class Cgroup:
    """A group of version 2 with the controllers of the CPU and of memory."""

    def __init__(self, outside):
        with open("/proc/self/mounts") as mounts:
            roots = [line.split()[1] for line in mounts if line.split()[2] == "cgroup2"]
        if not roots:
            raise Skip("no cgroup v2")
        root = roots[0]
        offered, enabled = (read(f"{root}/cgroup.{name}").split() for name in ("controllers", "subtree_control"))
        for controller in ("cpu", "memory"):
            if controller in enabled:
                continue
            if controller not in offered:
                raise Skip(f"cgroup v2 without the controller '{controller}'")
            try:
                write(f"{root}/cgroup.subtree_control", f"+{controller}")
            except OSError as error:
                raise Skip(f"cgroup v2: {controller} cannot be enabled: {error}") from error
            outside.undo.append(lambda controller=controller: write(f"{root}/cgroup.subtree_control", f"-{controller}"))
        self.path = f"{root}/gdiag-scenarios.{os.getpid()}"
        try:
            os.mkdir(self.path)
        except OSError as error:
            raise Skip(f"cgroup v2: {error}") from error
        outside.undo.append(lambda: os.rmdir(self.path))


def read(path):
    with open(path) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def far_peer(outside, tmp):
    """A helper in another network namespace; its address."""
    if not shutil.which("ip"):
        raise Skip("no program `ip`")
    there = outside.start("unshare", "--net", "sleep", "100")
    link, peer = f"gd{os.getpid()}a", f"gd{os.getpid()}b"
    inside = ["nsenter", "-t", str(there.pid), "--net"]
    time.sleep(0.3)  # until unshare has become sleep; if not, the link is made on this side and the next step fails
    for command in (["ip", "link", "add", link, "type", "veth", "peer", "name", peer, "netns", str(there.pid)],
                    ["ip", "addr", "add", "10.213.77.1/30", "dev", link], ["ip", "link", "set", link, "up"],
                    [*inside, "ip", "addr", "add", "10.213.77.2/30", "dev", peer], [*inside, "ip", "link", "set", peer, "up"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        if done.returncode:
            raise Skip(f"{' '.join(command)}: {done.stderr.strip()}")
    outside.undo.append(lambda: subprocess.run(["ip", "link", "del", link], capture_output=True, timeout=10))
    said = tmp + "/far"
    with open(said, "w") as file:
        process = subprocess.Popen([*inside, *FAULTS, "--serve", "tcp", "10.213.77.2"], stdin=subprocess.DEVNULL, stdout=file)
    outside.undo.append(lambda: end(process))
    deadline = time.monotonic() + 10
    while len(read(said).split()) < 2:
        if time.monotonic() > deadline:
            raise Skip("the far peer did not start")
        time.sleep(0.05)
    return f"10.213.77.2:{read(said).split()[1]}"


def be_client(port_file, requests):
    """For the group `server`: a connection for each request, or one for all. Ended by whoever started it."""
    while True:
        if not os.path.exists(port_file):
            time.sleep(0.01)
            continue
        kind, port = read(port_file).split()
        os.unlink(port_file)
        connection = None
        for _ in range(requests + 3):
            time.sleep(0.012)
            if connection is None:
                connection = socket.create_connection(("127.0.0.1", int(port)), timeout=20)
            connection.sendall(b"go\n")
            connection.recv(100)
            if kind == "accept":
                connection.close()
                connection = None


class Bench:
    def __init__(self, args):
        self.args = args
        self.out = toolkit.out_dir()
        self.tmp = tempfile.mkdtemp(prefix="scenarios-")
        self.results, self.golden_dir, self.data_dir = (f"{self.tmp}/{name}" for name in ("results", "golden", "data"))
        os.mkdir(self.results)
        os.mkdir(self.golden_dir)
        os.mkdir(self.data_dir)
        self.log = open(self.out + "/scenarios.log", "w")
        self.begin = time.monotonic()
        self.rows, self.notes = [], []
        self.lib = self.tmp + "/faults.so"
        build = ["gcc", "-O2", "-shared", "-fPIC", "-pthread", os.path.join(toolkit.HERE, "faults.c"), "-o", self.lib]
        subprocess.run(build, check=True, timeout=60)
        self.managed = "--unified-memory" in self.run([GDIAG, "record", "--help"])[1]
        self.cases = [json.loads(line) for line in self.run([*FAULTS, "--list"])[1].splitlines()]

    def left(self):
        return self.args.budget - (time.monotonic() - self.begin)

    def run(self, command, timeout=60):
        """Runs to its end, or to that of the time; everything said goes to the log. (status, stdout, stderr)"""
        t0 = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
            try:
                status = process.wait(timeout)
            except subprocess.TimeoutExpired:
                status = self.stop(process)
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode(errors="replace"))
        self.log.write(f"$ {' '.join(command)}\n{said[0][:20000]}{said[1][:20000]}status {status}, {time.monotonic() - t0:.1f} s\n\n")
        self.log.flush()
        return status, *said

    def stop(self, process):
        """gdiag first, so that it ends its file; then all that it started."""
        for number, seconds in ((signal.SIGINT, 8), (signal.SIGKILL, 3)):
            try:
                if number == signal.SIGKILL:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)
                process.wait(seconds)
            except (subprocess.TimeoutExpired, ProcessLookupError):
                continue
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return 124

    def prepare(self, group, gaps, outside):
        """Arguments of faults.py, and a process that writes the truth instead, with its file."""
        if group == "cpu":
            gang = self.tmp + "/gang"
            write(gang, "")
            for _ in range(3):
                outside.start(*FAULTS, "--be-hog", gang, "--lib", self.lib)
            return ["--gang", gang], None
        if group == "engine":
            fifo, truth = self.tmp + "/fifo", self.tmp + "/engine.jsonl"
            for path in (fifo, truth):
                if os.path.exists(path):
                    os.unlink(path)
            os.mkfifo(fifo)
            engine = outside.start(*FAULTS, "--be-engine", fifo, "--truth", truth, "--gaps", gaps)
            return ["--fifo", fifo], (engine, truth)
        if group == "server":
            port = self.tmp + "/port"
            outside.start(sys.executable, os.path.abspath(__file__), "--be-client", port, "--gaps", gaps)
            return ["--port", port], None
        if group == "cgroup":
            return ["--cgroup", Cgroup(outside).path], None
        if group == "network":
            return ["--peer", far_peer(outside, self.tmp)], None
        return [], None

    def record(self, group, twin, gaps, data, truth):
        """Status, what became of the cases, and what gdiag said."""
        outside = Outside(self)
        try:
            more, writer = self.prepare(group, gaps, outside)
            flags = ["--unified-memory"] if group == "managed" and self.managed else []
            limit = int(min(GROUPS[group], max(self.left(), 10)))
            command = [GDIAG, "record", "-o", data, *flags, "--", *FAULTS, group, "--lib", self.lib, "--truth", truth, "--gaps", str(gaps),
                       "--driver", self.args.driver, "--scratch", self.args.scratch, "--limit", str(limit), *more]
            command += ["--twin"] if twin else []
            command += ["--only", self.args.only] if self.args.only else []
            status, stdout, stderr = self.run(command, limit + 10)
            if writer and status == 0:
                writer[0].wait(5)
                shutil.copy(writer[1], truth)
        finally:
            outside.close()
        fates = {}
        for line in stdout.splitlines():
            if line.startswith('{"cases"'):
                fates = json.loads(line)["cases"]
        return status, fates, stderr

    def scenario(self, group, twin):
        name = f"{self.args.driver}-{group}{'-twin' if twin else ''}"
        if self.left() < 25:
            return self.skip(name, f"{self.left():.0f} s are left")
        gaps = 3 if self.args.quick else self.args.gaps
        t0 = time.monotonic()
        data, truth = f"{self.tmp}/{name}.data", f"{self.results}/{name}.truth.jsonl"
        write(truth, "")
        try:
            status, fates, stderr = self.record(group, twin, gaps, data, truth)
        except Skip as why:
            return self.skip(name, why)
        for case, fate in fates.items():
            if fate != "ran":
                say(f"  {name}: {case} {fate}")
                self.notes.append(f"{name}: {case} {fate}")
        if status:
            self.fail(name, f"status {status}: {stderr.strip()[-300:]}")
        if not os.path.exists(data) or "ran" not in fates.values():
            return None
        took = time.monotonic() - t0
        report = self.report(name, data)
        say(f"== {name}: {took:.0f} s, {os.path.getsize(data) / 1e6:.1f} MB, {self.left():.0f} s left")
        for warning in (report.get("quality") or {}).get("warnings") or []:
            say(f"  warning: {warning}")
        for row in compare(report, [json.loads(line) for line in read(truth).splitlines()]):
            row.update(recording=name, twin=twin)
            self.rows.append(row)
            say("  " + shown(row))
        return data

    def report(self, name, data):
        """The report, which is kept when it says anything of idle time."""
        limit = max(self.left(), 20)
        _, text, stderr = self.run([GDIAG, "report", "-i", data], limit)
        write(f"{self.results}/{name}.report.txt", text + stderr)
        status, text, stderr = self.run([GDIAG, "report", "-i", data, "--json", "--gaps", "all", "--min-gap", "10us"], limit)
        try:
            report = json.loads(text)
        except ValueError:
            self.fail(name, f"no report: status {status}, {stderr.strip()[-300:]}")
            return {}
        if any(gpu.get("idle_ns") for gpu in report.get("gpus") or []):
            write(f"{self.results}/{name}.report.json", text)
        else:
            self.fail(name, "the report has no idle time")
        return report

    def golden(self, group):
        """A recording of two faults each, to be kept if it is small."""
        if self.left() < 40:
            return self.skip(f"golden-{group}", f"{self.left():.0f} s are left")
        data = f"{self.tmp}/golden-{group}.data"
        try:
            status, _, stderr = self.record(group, False, 1 if group == "host" else 2, data, f"{self.golden_dir}/{group}.truth.jsonl")
        except Skip as why:
            return self.skip(f"golden-{group}", why)
        if status or not os.path.exists(data):
            return self.fail(f"golden-{group}", stderr.strip()[-300:])
        if os.path.getsize(data) < 1_000_000:
            shutil.copy(data, f"{self.golden_dir}/{group}.data")
        say(f"golden-{group}: {os.path.getsize(data)} bytes")
        return None

    def keep(self):
        with open(self.out + "/scenarios.json", "w") as file:
            json.dump({"rows": self.rows, "notes": self.notes}, file, indent=1)
        for folder, archive, kind in ((self.results, "scenarios.tar.gz", "w:gz"), (self.golden_dir, "golden.tar", "w")):
            with tarfile.open(f"{self.out}/{archive}", kind) as tar:
                for name in sorted(os.listdir(folder)):
                    tar.add(f"{folder}/{name}", name)

    def keep_recordings(self, most=15_000_000, archives=4):
        """In archives that are small enough to be copied one by one; what is larger than one is left out."""
        parts = []
        for name in sorted(os.listdir(self.data_dir), key=lambda name: -os.path.getsize(f"{self.data_dir}/{name}")):
            size = os.path.getsize(f"{self.data_dir}/{name}")
            part = next((part for part in parts if part[0] + size <= most), None)
            if part is None and size <= most and len(parts) < archives:
                part = [0, []]
                parts.append(part)
            if part is None:
                say(f"{name}: {size} bytes: left out")
                continue
            part[0] += size
            part[1].append(name)
        for number, (_, names) in enumerate(parts):
            with tarfile.open(f"{self.out}/recordings-{number}.tar", "w") as tar:
                for name in names:
                    tar.add(f"{self.data_dir}/{name}", name)

    def skip(self, name, why):
        say(f"== {name}: skipped: {why}")
        self.notes.append(f"{name}: skipped: {why}")

    def fail(self, name, why):
        say(f"== {name}: {FAILED}: {why}")
        self.notes.append(f"{name}: {FAILED}: {why}")


def compare(report, truth):
    """A row for each case: the idle time within its faults, by cause. What its thread computed in a fault that is a wait
    is no part of it, nor what gdiag and foreign programs took."""
    rows, seen = {}, {}
    gpus = [sorted((part for gap in gpu.get("gaps") or [] for part in gap["parts"]), key=lambda part: part["start_ns"]) for gpu in report.get("gpus") or []]
    starts = [[part["start_ns"] for part in parts] for parts in gpus]
    for line in truth:
        row = rows.setdefault((line["case"], line["cause"]), {"case": line["case"], "cause": line["cause"], "gaps": 0, "truth": 0, "idle": 0, "right": 0,
                                             "wrong": collections.Counter()})
        steps = seen.setdefault((line["case"], line["cause"]), set())
        row["truth"] += line["ns"]
        parts = []
        if line["device"] < len(gpus):
            here = starts[line["device"]]
            first, last = (bisect.bisect_left(here, line[key]) for key in ("start_ns", "end_ns"))
            parts = [part for part in gpus[line["device"]][max(first - 1, 0):last] if part["end_ns"] > line["start_ns"]]
        allowance = {"host.compute": line["end_ns"] - line["start_ns"] - line["ns"] - line["queued_ns"],
                     "host.preempted": line["queued_ns"], "host.oversubscribed": line["queued_ns"]}
        idle = 0
        for part in parts:
            ns = min(part["end_ns"], line["end_ns"]) - max(part["start_ns"], line["start_ns"])
            if part["cause"] == line["cause"]:
                row["right"] += ns
            elif part["cause"] in line.get("besides", []) or ambient(part):
                continue
            else:
                own = min(ns, max(allowance.get(part["cause"], 0), 0))
                if own:
                    allowance[part["cause"]] -= own
                    ns -= own
                row["wrong"][part["cause"]] += ns
            idle += ns
        row["idle"] += idle
        if idle:
            steps.add(line["step"])
        row["gaps"] = len(steps)
    return rows.values()


def ambient(part):
    who = part["what"].split(" (")[0]
    return part["cause"] == "host.preempted" and who != "hog" or part["cause"] == "host.observer" and who.startswith("gdiag")


def shown(row):
    wrong = ", ".join(f"{cause} {ns / row['idle']:.1%}" for cause, ns in row["wrong"].most_common(4) if ns * 100 > row["idle"])
    if row["twin"]:
        blamed = f"idle {row['idle'] / max(row['truth'], 1):7.2%} of it, blamed {row['right'] / max(row['truth'], 1):7.2%}"
        return f"{row['recording'] + ' ' + row['case']:34} {row['cause']:20} {blamed}  {wrong}"
    share = f"{row['right'] / row['idle']:7.1%}" if row["idle"] else "      -"
    return f"{row['recording'] + ' ' + row['case']:34} {row['cause']:20} {row['gaps']:4} gaps {row['idle'] / 1e6:8.1f} ms {share}  {wrong}"


def facts(driver):
    say(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} CPUs, {len(os.sched_getaffinity(0))} of them allowed")
    for path in ("/proc/self/cgroup", "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/cgroup.subtree_control"):
        try:
            say(f"{path}: {read(path).strip()[:200]}")
        except OSError as error:
            say(f"{path}: {error}")
    if driver == "torch":
        for command in (["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                        # Also so that no recording waits for a cold disk.
                        [sys.executable, "-c", "import torch; print(torch.__version__, torch.zeros(1, device='cuda').device)"]):
            t0 = time.monotonic()
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=120)
                say(f"{command[0]}: {done.stdout.strip() or done.stderr.strip()[-300:]} ({time.monotonic() - t0:.1f} s)")
            except (OSError, subprocess.SubprocessError) as error:
                say(f"{command[0]}: {error}")
    say(f"driver: {driver}; {GDIAG}")


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--quick", action="store_true", help="3 faults a case, and no twins or golden recordings")
    args.add_argument("--gaps", type=int, default=32, help="faults a case")
    args.add_argument("--only", default="", help="cases")
    args.add_argument("--groups", default=",".join(GROUPS))
    args.add_argument("--budget", type=float, default=0, help="seconds for everything (default 420, with --quick 120)")
    args.add_argument("--recordings", action="store_true", help="keep them all, as recordings-N.tar of at most 15 MB each")
    args.add_argument("--score", metavar="BIN", help="a program that scores the folder of reports and truth")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("--scratch", default="/var/tmp", help="folder on a disk")
    args.add_argument("--be-client", metavar="FILE", help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.be_client:
        return be_client(args.be_client, args.gaps)
    if not os.access(GDIAG, os.X_OK):
        sys.exit(f"{GDIAG}: no such program; set GDIAG")
    args.budget = args.budget or (120 if args.quick else 420)
    facts(args.driver)
    bench = Bench(args)
    only = set(filter(None, args.only.split(",")))
    unknown = only - {case["case"] for case in bench.cases}
    if unknown:
        sys.exit(f"no case {', '.join(sorted(unknown))}")

    plan = []
    for twin in (False, True):
        for group in args.groups.split(","):
            kinds = ("ahead", "own", "only") if twin else ("ahead", "own", None)
            if any(c["group"] == group and c["twin"] in kinds and (not only or c["case"] in only) for c in bench.cases):
                plan.append((group, twin))
    for group, twin in plan:
        if twin and args.quick and group != "host":
            continue
        try:
            data = bench.scenario(group, twin)
            if data and args.recordings:
                shutil.copy(data, bench.data_dir)
            if data:
                os.unlink(data)
        except Exception as error:  # one recording must not end the others
            bench.fail(group, repr(error))
    if not args.quick and not only:
        for group in ("host", "cpu", "engine", "loader", "managed", "cgroup"):
            if group in args.groups.split(","):
                try:
                    bench.golden(group)
                except Exception as error:
                    bench.fail(f"golden-{group}", repr(error))

    bench.keep()
    if args.recordings:
        bench.keep_recordings()
    say("\nFaults: idle time within them, the share with the right cause, and wrong causes")
    for row in bench.rows:
        if not row["twin"]:
            say(shown(row))
    say("\nTwins: no gap is due")
    for row in bench.rows:
        if row["twin"]:
            say(shown(row))
    idle, right = (sum(row[key] for row in bench.rows if not row["twin"]) for key in ("idle", "right"))
    say(f"\nall faults: {right / max(idle, 1):.1%} of {idle / 1e6:.0f} ms; {time.monotonic() - bench.begin:.0f} s")
    for note in bench.notes:
        say(note)
    if args.score:
        status, stdout, stderr = bench.run([args.score, bench.results], 60)
        say(stdout[-9000:], stderr[-1000:], f"(score: status {status})")
    shutil.rmtree(bench.tmp, ignore_errors=True)
    sys.exit(1 if any(FAILED in note for note in bench.notes) else 0)


if __name__ == "__main__":
    main()
