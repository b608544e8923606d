#!/usr/bin/env python3
"""pyload: GPU jobs in Python with known faults, on the simulated GPU or a real one.

  pyload.py --list                                             a line of JSON for each case
  pyload.py --case A[,B...] [--twin] --gaps 32 --truth FILE    runs cases, and writes a line of JSON for each fault
  pyload.py --outside -- COMMAND...                            runs COMMAND beside the programs that some cases ask
  pyload.py --check FILE...                                    whether truths are sane

A loop of steps: launch some kernels, wait for them. Before every second step a fault comes that is real on the host.
A line of truth says which cause gdiag should find, and when (CLOCK_MONOTONIC): "ns" is how much of the time from
"start_ns" to "end_ns" the fault was in effect; for "queued_ns" its thread was runnable, and others had the CPU.
--twin makes the same calls without a gap; with "twin_idle" in the list, the calls are quick, but the device is idle.

Cases with "outside" in the list talk to a program that is no part of the job. It is started before the recording, by
the same program: `pyload.py --outside -- gdiag record -o FILE -- pyload.py --case ...`.
"""

import argparse
import json
import os
import sys
import warnings

import load
import outside

# Their cases.
import engines  # noqa: F401
import loaders  # noqa: F401
import mixed  # noqa: F401
import on_device  # noqa: F401
import on_disk  # noqa: F401
import on_main  # noqa: F401
import on_threads  # noqa: F401
import outside_peers  # noqa: F401
import peers  # noqa: F401
import ranks  # noqa: F401
import server  # noqa: F401


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--case", metavar="NAME[,NAME]", help="run these")
    parser.add_argument("--twin", action="store_true", help="run their negative twins instead")
    parser.add_argument("--gaps", type=int, default=32, help="faults of each case")
    parser.add_argument("--truth", metavar="FILE", help="where the truth goes")
    parser.add_argument("--seed", type=int, default=1, help="of the lengths of faults")
    parser.add_argument("--scratch", metavar="DIR", default="/var/tmp", help="a directory on a disk")
    parser.add_argument("--check", metavar="FILE", nargs="+", help="check truths")
    parser.add_argument("--outside", action="store_true", help="run the command after -- beside the outside programs")
    parser.add_argument("command", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args()


def chosen(names, twin):
    for name in names.split(","):
        case = load.CASES.get(name)
        if case is None:
            sys.exit("pyload: no case '%s', see --list" % name)
        if twin and case.twin is None:
            sys.exit("pyload: '%s' has no twin" % name)
        for variable, value in case.env.items():
            if os.environ.get(variable) != value:
                sys.exit("pyload: '%s' needs %s=%s" % (name, variable, value))
        yield case


def run(args):
    cases = list(chosen(args.case, args.twin))
    with open(args.truth or os.devnull, "w") as file:
        for case in cases:
            rng = load.generator(args.seed, case.name)
            begin = load.now()
            truth = load.Run(case, args.gaps, args.twin, rng, args.scratch)()
            for line in truth.lines:
                assert begin <= line["start_ns"] and line["end_ns"] <= load.now(), line
            load.write(truth, file)
            steps = len({line["step"] for line in truth.lines})
            ns = sum(line["ns"] for line in truth.lines)
            print("%s: %d faults, %.1f ms" % (case.name, steps, ns / 1e6), flush=True)


def check(paths):
    """Of each case: enough faults, and in order, without overlap and with no more effect than time."""
    wrong = []
    for path in paths:
        ends, steps = {}, {}
        with open(path) as file:
            for line in map(json.loads, file):
                name = line["case"]
                if not line["start_ns"] < line["end_ns"] or not 0 < line["ns"] <= line["end_ns"] - line["start_ns"]:
                    wrong.append("%s: no time: %s" % (name, line))
                if line["start_ns"] < ends.get(name, 0):
                    wrong.append("%s: overlaps the one before: %s" % (name, line))
                ends[name] = line["end_ns"]
                steps.setdefault(name, set()).add(line["step"])
        for name, seen in steps.items():
            if len(seen) < 30:
                wrong.append("%s: %d faults" % (name, len(seen)))
        if not steps:
            wrong.append("%s: no faults" % path)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


def main():
    args = options()
    # Forking in a process with threads is what some cases are about.
    warnings.simplefilter("ignore", DeprecationWarning)
    if args.list:
        for case in load.CASES.values():
            print(json.dumps(case.line()))
    elif args.check:
        sys.exit(check(args.check))
    elif args.outside and args.command:
        sys.exit(outside.run_beside(args.command))
    elif args.case:
        run(args)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
