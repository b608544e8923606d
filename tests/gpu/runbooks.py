#!/usr/bin/env python3
"""The runbooks, `gdiag check` and `gdiag diff` beside PyTorch loops with one known fault each, on a real GPU.

  runbooks.py [--only PART[,PART]] [--budget 450]

GDIAG names the binary (default: target/release/gdiag), JQ a jq where there is none. Needs root, a GPU, and a python3
with torch. Parts:

  check   gdiag check, of the machine and of a process
  busy    a GPU that is hardly ever idle: nothing is wrong
  hog     a hog on the CPU of the loop
  loader  a slow DataLoader
  item    .item() each step
  stall   a pause every two seconds
  ranks   two processes that meet by gloo, one of which is late
  steps   two recordings of the same loop, and one of a loop whose steps take longer

Writes to $OUT (or target/gpu): runbooks.log with every command and what it said, runbooks.json. Prints the table last:
what was run, the exit status that was expected and found, the seconds it took. The exit status is 1 when one differs.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import toolkit

REPO = os.path.abspath(os.path.join(toolkit.HERE, "../.."))
GDIAG = os.environ.get("GDIAG", os.path.join(REPO, "target/release/gdiag"))
RUNBOOKS = os.path.join(REPO, "docs/runbooks")
LOOP = [sys.executable, os.path.join(toolkit.HERE, "runbook_loop.py")]
STARTS = 120  # a process with torch, from a cold disk


def say(*words):
    print(*words, flush=True)


class Failed(Exception):
    """A part cannot go on."""


class Bench:
    def __init__(self, budget):
        self.out = toolkit.out_dir()
        self.tmp = tempfile.mkdtemp(prefix="runbooks-")
        self.log = open(self.out + "/runbooks.log", "w")
        self.begin, self.budget = time.monotonic(), budget
        self.processes, self.rows = [], []
        self.part = None
        # The scripts would take $OUT for theirs.
        self.env = {**os.environ, "GDIAG": GDIAG}
        self.env.pop("OUT", None)

    def left(self):
        return self.budget - (time.monotonic() - self.begin)

    def start(self, command):
        self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True))
        return self.processes[-1]

    def loop(self, fault, *options):
        """A loop that is being started."""
        ready = tempfile.mktemp(dir=self.tmp)
        process = self.start([*LOOP, "--fault", fault, "--ready", ready, *map(str, options)])
        return process, ready

    def warm(self, process, ready):
        deadline = time.monotonic() + STARTS
        while not os.path.exists(ready):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the loop does not run: status {process.poll()}, see runbooks.log")
            time.sleep(0.05)
        return process

    def warm_loop(self, fault, *options):
        return self.warm(*self.loop(fault, *options))

    def run(self, command, seconds=90):
        begin = time.monotonic()
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, errors="replace", env=self.env, start_new_session=True)
        self.processes.append(process)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.end(process)
            out, err = "", f"no end within {seconds} s"
        took = time.monotonic() - begin
        self.log.write(f"$ {' '.join(process.args)}\n{out[:20000]}{err[-8000:]}status {process.returncode}, {took:.1f} s\n\n")
        self.log.flush()
        return process.returncode, out, err, took

    def row(self, what, expected, found, right, took=0.0, detail=""):
        """`right` is None for what is no more than said."""
        self.rows.append({"part": self.part, "what": what, "expected": expected, "found": found, "pass": right, "seconds": round(took, 1), "detail": detail})
        say("  " + shown(self.rows[-1]))

    def runbook(self, name, expected, *arguments, contains=""):
        """`expected` is a status, or several."""
        expected = expected if isinstance(expected, tuple) else (expected,)
        status, out, err, took = self.run(["sh", os.path.join(RUNBOOKS, name), *arguments])
        right = status in expected and contains in out
        self.row(name, " or ".join(map(str, expected)), status, right, took, first_lines(out) or " ".join(err.split())[-200:])
        return out

    def gdiag(self, what, expected, *arguments):
        """Its JSON."""
        status, out, err, took = self.run([GDIAG, *arguments])
        self.row(what, expected, status, status == expected, took, " ".join(err.split())[-160:])
        try:
            return json.loads(out)
        except ValueError:
            raise Failed(f"{what}: no JSON") from None

    def end(self, process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(10)

    def clear(self):
        for process in self.processes:
            self.end(process)
        self.processes = []


def first_lines(out):
    """The verdict and what it rests on, in a line."""
    lines = out.splitlines()
    chosen = [line for line in lines if line.split(": ")[0] in ("verdict", "cause", "who", "where", "period", "change")]
    return " | ".join(line[:110] for line in chosen[:4])


def shown(row):
    mark = {True: "PASS", False: "FAIL", None: "-"}[row["pass"]]
    return f"{mark:5}{row['part']:8}{row['what']:28}{str(row['expected']):>10}{str(row['found']):>8}{row['seconds']:8.1f}  {row['detail']}"


def table(bench):
    lines = [f"{'':5}{'part':8}{'what':28}{'expected':>10}{'found':>8}{'seconds':>8}  said"]
    lines += [shown(row) for row in bench.rows]
    failed = sum(row["pass"] is False for row in bench.rows)
    lines += ["", f"{sum(row['pass'] is True for row in bench.rows)} passed, {failed} failed; {time.monotonic() - bench.begin:.0f} s"]
    return "\n".join(lines)


def free_cpu():
    return sorted(os.sched_getaffinity(0))[-1]


def lines_of(check):
    return ", ".join(f"{line['id']}: {line['status']}" for line in check["checks"] if line["status"] != "ok")[:300]


def part_check(bench):
    check = bench.gdiag("check", 0, "check", "--json")
    bench.row("check: what is not ok", "-", len(check["checks"]), None, detail=lines_of(check))
    loop = bench.warm_loop("none")
    check = bench.gdiag("check -p", 0, "check", "--json", "-p", str(loop.pid))
    bench.row("check -p: what is not ok", "-", len(check["checks"]), None, detail=lines_of(check))


def part_busy(bench):
    loop = bench.warm_loop("none")
    bench.runbook("gpu-at-40-percent.sh", 0, "-d", "4s", loop.pid)
    bench.runbook("noisy-neighbour.sh", 0, "-d", "3s", loop.pid)
    bench.runbook("stalls-every-n-seconds.sh", 0, "-d", "4", "--over", "500ms", loop.pid)
    bench.runbook("one-rank-is-slow.sh", 10, "-d", "2s", loop.pid)
    bench.runbook("gpu-at-40-percent.sh", 1, "-d", "1s", 999999999)
    bench.end(loop)
    bench.runbook("gate.sh", 0, "--assert", "idle<95%", "--assert", "lost<=0", "--", *LOOP, "--fault", "none", "--seconds", 3)


def part_hog(bench):
    cpu = free_cpu()
    loop = bench.warm_loop("hog", "--cpu", cpu)
    hog = bench.start(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"])
    bench.runbook("gpu-at-40-percent.sh", 11, "-d", "4s", loop.pid, contains=str(hog.pid))
    bench.runbook("noisy-neighbour.sh", 11, "-d", "3s", loop.pid, contains=f"sh (process {hog.pid})")
    bench.runbook("noisy-neighbour.sh", 11, "-d", "3s", "--cpus", cpu, contains=str(hog.pid))
    bench.end(hog)
    # Alone, it is launches that the GPU waits for.
    bench.runbook("gpu-at-40-percent.sh", 18, "-d", "4s", loop.pid)


def part_loader(bench):
    loop = bench.warm_loop("loader")
    bench.runbook("gpu-at-40-percent.sh", 15, "-d", "4s", loop.pid, contains="host.data-loading")


def part_item(bench):
    loop = bench.warm_loop("item")
    # A refill of more than 50 us after the call is the program's own time.
    bench.runbook("gpu-at-40-percent.sh", (17, 18), "-d", "4s", "--idle", "1", loop.pid, contains="host.sync")


def part_stall(bench):
    loop = bench.warm_loop("stall")
    out = bench.runbook("stalls-every-n-seconds.sh", 18, "-d", "30", "--over", "150ms", "--stalls", "5", loop.pid, contains="host.sleep")
    period = next((line for line in out.splitlines() if line.startswith("period: ")), "period: -")
    bench.row("the period", "2.3 s", period[8:], period.startswith(("period: 2.2", "period: 2.3", "period: 2.4")))


def part_ranks(bench):
    meet = bench.tmp + "/meet"
    loops = [bench.loop("rank", "--rank", rank, "--meet", meet) for rank in range(2)]
    for loop in loops:
        bench.warm(*loop)
    pids = [process.pid for process, _ in loops]
    bench.runbook("one-rank-is-slow.sh", 18, "-d", "4s", *pids, contains=f"wait for process {pids[1]} ")
    bench.runbook("one-rank-is-slow.sh", 18, "-d", "4s", "--all", contains=f"wait for process {pids[1]} ")


def part_steps(bench):
    def record(fault, name):
        loop = bench.warm_loop(fault)
        file = f"{bench.tmp}/{name}.data"
        status, _, err, took = bench.run([GDIAG, "record", "-q", "-d", "4s", "-o", file, "-p", str(loop.pid)])
        bench.end(loop)
        if status:
            raise Failed(f"record: status {status}: {err[-200:]}")
        return file

    first, again = record("none", "first"), record("none", "again")
    slow = bench.warm_loop("sleep")
    bench.runbook("step-time-doubled.sh", 0, first, again)
    bench.runbook("step-time-doubled.sh", 18, "-d", "4s", first, slow.pid, contains="host.sleep")
    bench.end(slow)
    slower = record("sleep", "slower")
    for what, old, new, changed in [("diff of A and A", first, again, False), ("diff of A and B", first, slower, True)]:
        diff = bench.gdiag(what, 0, "diff", "--json", old, new)
        gpu = diff["gpus"][0]
        idle = gpu["idle"]
        bench.row(what + ": idle changed", changed, idle["changed"], idle["changed"] is changed,
                  detail=f"idle {idle['a']:.3f} -> {idle['b']:.3f}, noise {idle['noise']}; per step {json.dumps((gpu['per_step'] or {}).get('time_ns'))}")


PARTS = {"check": part_check, "busy": part_busy, "hog": part_hog, "loader": part_loader, "item": part_item, "stall": part_stall,
         "ranks": part_ranks, "steps": part_steps}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--only", default="", help="parts")
    args.add_argument("--budget", type=float, default=450, help="seconds for everything")
    args = args.parse_args()
    wanted = list(filter(None, args.only.split(","))) or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    bench = Bench(args.budget)
    try:
        for bench.part in wanted:
            if bench.left() < 40:
                bench.row("not run", "-", "-", None, detail="the time is over")
                continue
            say(f"{bench.part}, {bench.left():.0f} s left")
            try:
                PARTS[bench.part](bench)
            except (Failed, OSError, KeyError, IndexError, TypeError, ValueError) as error:
                bench.row("went on", "yes", "no", False, detail=f"{type(error).__name__}: {error}")
            bench.clear()
    finally:
        bench.clear()
        with open(bench.out + "/runbooks.json", "w") as file:
            json.dump(bench.rows, file, indent=1)
        text = table(bench)
        bench.log.write(text + "\n")
        bench.log.close()
        say("\n" + text)
        shutil.rmtree(bench.tmp, ignore_errors=True)
    sys.exit(1 if any(row["pass"] is False for row in bench.rows) else 0)


if __name__ == "__main__":
    main()
