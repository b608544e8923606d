#!/usr/bin/env python3
"""How much gdiag and its peers slow a load down: each traced run comes right after a bare one, tools in random order.

  overhead.py [ROUNDS] [--only TOOL[,TOOL]] [--json FILE]       GDIAG=path/to/gdiag (default: target/release/gdiag)

Loads: sw1 one pair of threads that switch to and fro on CPU 0; sw2 a pair on each of CPUs 0 and 1; sy1 one thread
that calls getppid, sy2 two of them. Columns: operations a second without and with the tool; slowdown, the median of the ratios of
the pairs of runs, and their range; CPU time that an operation got dearer by; CPU seconds of the tool; size of its file, also
per context switch; events that gdiag says it lost. Quote ratios and their order, not nanoseconds: machines differ.

Needs root. A tool that is not installed, or that this kernel refuses (trace-cmd wants to write
/proc/sys/kernel/ftrace_enabled, which some sandboxes forbid), is listed as not run.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GDIAG = os.environ.get("GDIAG", os.path.join(HERE, "../../target/release/gdiag"))
TMP = tempfile.mkdtemp(prefix="overhead-")
LOAD = TMP + "/hostload"
LOADS = {"sw1": [LOAD, "switch"], "sw2": [LOAD, "switch", "-n", "2"], "sy1": [LOAD, "syscall"], "sy2": [LOAD, "syscall", "-n", "2"]}
SAYS_LOST = re.compile(r"^\[ gdiag .* lost ([\d,]+) \]", re.M)
SWITCHES_PER_OP = 2


def tools():
    """name, command before the load's own, loads, file. None for the load: the tool runs beside it until interrupted."""
    runqlat = shutil.which("runqlat") or shutil.which("runqlat-bpfcc")
    syscount = shutil.which("syscount") or shutil.which("syscount-bpfcc") or "syscount"
    return [
        ("gdiag record", [GDIAG, "record", "-q", "-o", TMP + "/gdiag.data", "--"], ["sw1", "sw2", "sy1"], "gdiag.data"),
        ("gdiag record -a", [GDIAG, "record", "-q", "-a", "-o", TMP + "/all.data", "--"], ["sw1", "sw2"], "all.data"),
        ("perf sched record", ["perf", "sched", "record", "-o", TMP + "/perf.data", "--"], ["sw1", "sw2"], "perf.data"),
        ("trace-cmd -e sched", ["trace-cmd", "record", "-e", "sched", "-o", TMP + "/trace.dat"], ["sw1", "sw2"], "trace.dat"),
        ("gdiag sched", ([GDIAG, "sched", "-d", "60s"], None), ["sw1", "sw2"], None),
        ("runqlat", ([runqlat or "runqlat", "60", "1"], None), ["sw1", "sw2"], None),
        ("gdiag syscalls -s", [GDIAG, "syscalls", "-s", "-o", TMP + "/calls.txt", "--"], ["sy1", "sy2", "sw1"], None),
        ("gdiag syscalls", [GDIAG, "syscalls", "-o", TMP + "/calls.txt", "--"], ["sy1"], None),
        ("gdiag record --sys", [GDIAG, "record", "--syscalls", "-o", TMP + "/sys.data", "--"], ["sy1"], "sys.data"),
        ("syscount", ([syscount, "-d", "60"], None), ["sy1"], None),
        ("syscount -L", ([syscount, "-L", "-d", "60"], None), ["sy1", "sy2"], None),
        ("perf trace -s", ["perf", "trace", "-s", "-o", TMP + "/trace.txt", "--"], ["sy1", "sw1"], None),
        ("strace -c", ["strace", "-c", "-f", "-o", TMP + "/strace.txt"], ["sy1"], None),
    ]


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def result(text):
    for line in text.splitlines():
        at = line.find('{"load"')
        if at >= 0:
            try:
                return json.loads(line[at:])
            except ValueError:
                pass
    return None


def around(command):
    """Runs a command that prints the load's result; that result, the CPU seconds of the whole, and what was said besides."""
    before = children_cpu()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None, 0, ""
    return result(done.stdout + "\n" + done.stderr), children_cpu() - before, done.stderr


def beside(command, load):
    """Runs the load while the tool, which attaches to the whole machine, is at work."""
    before = children_cpu()
    try:
        said = open(TMP + "/said", "w+")
        tool = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
    except OSError:
        return None, 0, ""
    time.sleep(3)  # it compiles its program; nothing tells when that is done
    alive = tool.poll() is None
    done, _, _ = around(load)
    if alive:
        tool.send_signal(signal.SIGINT)
    try:
        tool.wait(30)
    except subprocess.TimeoutExpired:
        tool.kill()
        tool.wait()
    said.seek(0)
    return done if alive else None, children_cpu() - before, said.read()


def lost(path, said):
    """Events, as gdiag says."""
    found = SAYS_LOST.search(said)
    if found or not path:
        return int(found[1].replace(",", "")) if found else None
    done = subprocess.run([GDIAG, "report", "--json", "-i", path], capture_output=True, text=True, errors="replace")
    try:
        return json.loads(done.stdout)["quality"]["bpf_lost"]
    except (ValueError, KeyError):
        return None


def measure(name, command, load, file):
    """One pair of runs, or None when the tool did not run."""
    bare, _, _ = around(LOADS[load])
    path = f"{TMP}/{file}" if file else None
    if path and os.path.exists(path):
        os.unlink(path)
    if isinstance(command, tuple):
        traced, cpu, said = beside(command[0], LOADS[load])
    else:
        traced, cpu, said = around(command + LOADS[load])
    size = os.path.getsize(path) if path and os.path.exists(path) else 0
    if not bare or not traced or (path and not size):
        return None
    switches = traced["ops"] * SWITCHES_PER_OP if load.startswith("sw") else 0
    return {
        "bare_s": bare["ops_s"],
        "traced_s": traced["ops_s"],
        "slowdown": bare["ops_s"] / traced["ops_s"],
        "added_ns": traced["cpu_ns_op"] - bare["cpu_ns_op"],
        "tool_cpu_s": cpu - traced["cpu_s"],
        "mb": size / 1e6,
        "bytes_switch": size / switches if switches else 0,
        "lost": lost(path, said) if name.startswith("gdiag") else None,
    }


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("rounds", nargs="?", type=int, default=5)
    args.add_argument("--only")
    args.add_argument("--json", metavar="FILE")
    args = args.parse_args()
    if os.geteuid() != 0:
        sys.exit("overhead.py: tracing needs root")
    if (os.cpu_count() or 1) < 2:
        sys.exit("overhead.py: needs two CPUs: the load takes one")
    subprocess.run(["cc", "-O2", "-Wall", "-pthread", "-o", LOAD, HERE + "/hostload.c"], check=True)
    only = args.only.split(",") if args.only else None
    jobs = [(name, command, load, file) for name, command, loads, file in tools() if not only or name in only for load in loads]
    rows = {(load, name): [] for name, _, load, _ in jobs}
    for i in range(args.rounds):
        random.shuffle(jobs)
        for name, command, load, file in jobs:
            pair = measure(name, command, load, file)
            if pair:
                rows[load, name].append(pair)
        print(f"round {i + 1} of {args.rounds}", file=sys.stderr, flush=True)
    shutil.rmtree(TMP)
    if args.json:
        with open(args.json, "w") as f:
            json.dump([{"load": load, "tool": name, "runs": runs} for (load, name), runs in rows.items()], f, indent=1)

    print(f"{'load':5}{'tool':19}{'bare/s':>9}{'with/s':>9}{'slowdown':>9}{'range':>12}{'+ns/op':>8}{'tool s':>7}{'MB':>7}{'B/switch':>9}{'lost':>6}  runs")
    for load in LOADS:
        mine = [(name, runs) for (l, name), runs in rows.items() if l == load]
        for name, runs in sorted(mine, key=lambda row: statistics.median(r["slowdown"] for r in row[1]) if row[1] else 1e9):
            if not runs:
                print(f"{load:5}{name:19}  not run")
                continue
            m = {k: statistics.median(r[k] for r in runs) for k in runs[0] if k != "lost"}
            ratios = [r["slowdown"] for r in runs]
            losses = [r["lost"] for r in runs if r["lost"] is not None]
            print(f"{load:5}{name:19}{m['bare_s']:9.0f}{m['traced_s']:9.0f}{m['slowdown']:9.2f}{f'{min(ratios):.2f}-{max(ratios):.2f}':>12}{m['added_ns']:8.0f}"
                  f"{m['tool_cpu_s']:7.2f}{m['mb']:7.1f}{m['bytes_switch']:9.1f}{sum(losses) if losses else '-':>6}  {len(runs)}")


if __name__ == "__main__":
    main()
