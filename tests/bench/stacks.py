#!/usr/bin/env python3
"""User stacks side by side: how whole they are, what they slow down, how much they write.

  stacks.py [ROUNDS] [--seconds N] [--hz HZ[,HZ]] [--json FILE]      GDIAG=path/to/gdiag (default: target/release/gdiag)

Programs: those of tests/programs/stacks in C++ and Python, built without frame pointers. Each runs bare, under
`gdiag record`, and under `perf record --call-graph dwarf` and `--call-graph fp`, in random order. Columns: stacks a
second taken; share that reaches the first function of a thread, and share in which every function of the program's
own known chain stands in its place (inlined ones left out: perf looks them up by another program; what runs before
and after the known chains, in Python a tenth, never is); work done per second
of CPU, bare by traced; CPU seconds of the tool for each second of the program; bytes of the file for each stack, which in gdiag's
has the scheduler's events in it too. Medians of the rounds.

Needs root and perf. perf sees no frames of Python, so for that program no chain of it is whole.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GDIAG = os.environ.get("GDIAG", os.path.join(HERE, "../../target/release/gdiag"))
SOURCE = os.path.join(HERE, "../programs/stacks")
TMP = tempfile.mkdtemp(prefix="stacks-")
TRUTH = TMP + "/truth"
PROGRAMS = {
    "C++": [TMP + "/chains-cc", TRUTH],
    "Python": [sys.executable, os.path.join(SOURCE, "chains.py"), TRUTH],
}
# Of the programs, where debug information is not read.
INLINED = {"spin"}
FIRST = ("_start", "clone", "__clone", "clone3", "__clone3", "__GI___clone3", "start_thread")


def tools(hz):
    """name, command before the program's own, file."""
    perf = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(hz), "-o", TMP + "/perf.data", "--call-graph"]
    return [
        ("gdiag record", [GDIAG, "record", "-q", "-F", str(hz), "-o", TMP + "/gdiag.data", "--"], TMP + "/gdiag.data"),
        ("perf, dwarf", perf + ["dwarf", "--"], TMP + "/perf.data"),
        ("perf, fp", perf + ["fp", "--"], TMP + "/perf.data"),
    ]


def run(command, seconds, seed):
    """What the program printed, the CPU seconds of all, and how long it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run([*command, str(seconds), str(seed)], capture_output=True, text=True, errors="replace", check=True)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    line = next(line for line in done.stdout.splitlines() if line.startswith('{"work"'))
    return json.loads(line), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def plain(name):
    """Without what a demangler or a line of Python adds: parameters, template arguments, offsets, the class."""
    python = re.fullmatch(r"(.*) \(\S*:\d+\)", name)
    if python:
        return python[1].rsplit(".", 1)[-1]
    name = name.split("@@")[0].split(" [clone")[0].split("+0x")[0]
    name = name.replace("operator()", "operator\0")
    while True:
        shorter = re.sub(r"<[^<>]*>|\([^()]*\)", "", name)
        if shorter == name:
            break
        name = shorter
    return name.replace("\0", "()").removesuffix(" const").split(" ")[-1].split(".")[0]


def of_gdiag(path):
    """Stacks of CPU samples, root first, and how often; whether each is whole; inlined functions are marked."""
    folded = subprocess.run([GDIAG, "flame", "-i", path, "--mode", "cpu", "--folded"], capture_output=True, text=True, check=True)
    for line in folded.stdout.splitlines():
        stack, _, weight = line.rpartition(" ")
        frames = [f for f in stack.split(";")[2:] if not f.endswith("_[k]")]
        if frames and not frames[0].startswith("[no stack"):
            names = [(plain(f.removesuffix("_[i]")), f.endswith("_[i]")) for f in frames]
            yield names, int(weight), not frames[0].startswith("[cut")


def of_perf(path):
    script = subprocess.run(["perf", "script", "-i", path, "-F", "tid,ip,sym", "--no-inline"], capture_output=True, text=True, errors="replace", check=True)
    for sample in script.stdout.split("\n\n"):
        names = [line.strip().split(" ", 1)[-1] for line in sample.splitlines()[1:]]
        # Addresses of the kernel have 16 digits.
        kernel = [len(line.strip().split(" ", 1)[0]) == 16 and line.strip().startswith("f") for line in sample.splitlines()[1:]]
        names = [(plain(name), False) for name, k in zip(names, kernel) if not k][::-1]
        if names:
            yield names, 1, names[0][0] in FIRST


def own(chain):
    """The functions of a chain that must be there; of Python's, as far as the name goes."""
    names = [call if isinstance(call, str) else call[0] for call in chain]
    return [n for n in names if not n.endswith("?") and n[0] not in "+*" and "{lambda" not in n]


def score(stacks):
    """Their number, and the shares of them that reach the first function and that are a known chain."""
    with open(TRUTH) as f:
        chains = [own(json.loads(line)["chain"]) for line in f]
    inlined = {name for names, _, _ in stacks for name, inline in names if inline} | INLINED
    known = {name for chain in chains for name in chain} - inlined
    chains = {tuple(name for name in chain if name in known) for chain in chains}
    total = sum(weight for _, weight, _ in stacks)
    to_root = sum(weight for _, weight, whole in stacks if whole)
    whole = sum(weight for names, weight, _ in stacks if tuple(name for name, _ in names if name in known) in chains)
    return total, to_root / total, whole / total


def measure(tool, command, file, program, hz, seconds, seed):
    """A run under a tool, right after a bare one."""
    bare, _, _ = run(program, seconds, seed)
    if os.path.exists(file):
        os.unlink(file)
    traced, cpu, wall = run(command + program, seconds, seed)
    if tool.startswith("gdiag"):
        # Its graphs have times, not numbers of stacks.
        _, to_root, whole = score(list(of_gdiag(file)))
        stacks = traced["process_ns"] / 1e9 * hz
    else:
        stacks, to_root, whole = score(list(of_perf(file)))
    return {
        "stacks_s": stacks / wall,
        "to_root": to_root,
        "whole": whole,
        "slowdown": bare["work"] / bare["cpu_ns"] / (traced["work"] / traced["cpu_ns"]),
        "tool_cpu": (cpu - traced["process_ns"] / 1e9) / wall,
        "bytes_stack": os.path.getsize(file) / stacks,
    }


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("rounds", nargs="?", type=int, default=3)
    args.add_argument("--seconds", type=float, default=4)
    args.add_argument("--hz", default="99,999")
    args.add_argument("--json", metavar="FILE")
    args = args.parse_args()
    if os.geteuid() != 0:
        sys.exit("stacks.py: tracing needs root")
    subprocess.run(["sh", SOURCE + "/build.sh", TMP], check=True)
    frequencies = [int(hz) for hz in args.hz.split(",")]
    jobs = [(program, hz, *tool) for program in PROGRAMS for hz in frequencies for tool in tools(hz) if shutil.which(tool[1][0])]
    rows = {job[:3]: [] for job in jobs}
    for i in range(args.rounds):
        random.shuffle(jobs)
        for program, hz, tool, command, file in jobs:
            try:
                rows[program, hz, tool].append(measure(tool, command, file, PROGRAMS[program], hz, args.seconds, i + 1))
            except subprocess.CalledProcessError as e:
                print(f"{tool} at {hz} Hz, {program}: {e}\n{e.stderr}", file=sys.stderr)
        print(f"round {i + 1} of {args.rounds}", file=sys.stderr, flush=True)
    shutil.rmtree(TMP)
    if args.json:
        with open(args.json, "w") as f:
            json.dump([{"program": p, "hz": hz, "tool": tool, "runs": runs} for (p, hz, tool), runs in rows.items()], f, indent=1)

    print(f"{'program':8}{'Hz':>5}  {'tool':14}{'stacks/s':>9}{'to root':>9}{'whole':>9}{'slowdown':>10}{'range':>14}{'tool CPU':>10}{'B/stack':>9}")
    for (program, hz, tool), runs in rows.items():
        if not runs:
            print(f"{program:8}{hz:5}  {tool:14}  not run")
            continue
        m = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        ratios = [run["slowdown"] for run in runs]
        print(f"{program:8}{hz:5}  {tool:14}{m['stacks_s']:9.0f}{m['to_root']:9.1%}{m['whole']:9.1%}{m['slowdown']:10.3f}"
              f"{f'{min(ratios):.3f}-{max(ratios):.3f}':>14}{m['tool_cpu']:10.2%}{m['bytes_stack']:9.0f}")


if __name__ == "__main__":
    main()
