#!/usr/bin/env python3
"""A PyTorch program with known faults: it injects each at a known time and writes when that was.

  faults.py GROUP[,GROUP] --lib LIB --truth FILE [--gaps 32] [--twin] [--only CASE,CASE] [--driver torch|cuda]
  faults.py --list

The faults of a group come in random order, each followed by steps that wait for the device. With --twin the same
calls are made while the device has work queued, or so that they take no time: no gap is due.
Truth: a line of JSON for each fault, CLOCK_MONOTONIC: for `ns` of the time between `start_ns` and `end_ns` it was in
effect. The last line printed says, as JSON, which cases ran, and why others did not.
--lib: faults.c as a library. --driver cuda: without PyTorch; what needs it is left out.
scenarios.py runs this under gdiag.
"""

import argparse
import gc
import json
import os
import random
import signal
import socket
import sys
import time
import traceback

import faults_cuda  # noqa: F401: registers its cases
import faults_outside  # noqa: F401: likewise
from faultlib import (AHEAD, CASES, MS, ONLY, OWN, Case, Clocks, DriverGpu, Note, Run, Skip, Steps, TorchGpu, follow_parent, load_library, now, set_name,
                      write_truth)
from faults_host import detokenize, heap

# A collection that is not a fault would be wrong in every truth. Those that are faults are asked for.
gc.disable()


def serve(kind, arguments):
    """A helper: a line of numbers for a line of numbers."""
    follow_parent()
    set_name(kind)
    if kind == "tcp":
        with socket.create_server((arguments[0], 0)) as listener:
            print(0, flush=True)
            print(listener.getsockname()[1], flush=True)
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    time.sleep(int(line) / 1e9)
                    connection.sendall(b"done\n")
        return
    print(0, flush=True)
    for line in sys.stdin:
        ns, start = int(line), now()
        if kind == "compute":
            detokenize(ns)
        elif kind == "stopper":
            time.sleep(0.001)
            os.kill(int(arguments[0]), signal.SIGSTOP)
            time.sleep(ns / 1e9)
            os.kill(int(arguments[0]), signal.SIGCONT)
        print(start, now(), flush=True)


def be_engine(fifo, truth, gaps):
    """Hands out steps; sometimes it collects garbage or detokenises before the next one. Outside of what is recorded."""
    follow_parent()
    set_name("engine")
    live = heap(20)
    pauses = {"engine-gc": ("host.gc", gc.collect), "engine-compute": ("host.compute", lambda: detokenize(8 * MS))}
    notes = {name: Note(Case(None, name, "engine", cause, None, [])) for name, (cause, _) in pauses.items()}
    turns = [name for name in pauses for _ in range(gaps)]
    random.Random(1).shuffle(turns)
    with open(fifo, "wb", buffering=0) as work:
        for step, name in enumerate([None] * 20 + turns):
            for _ in range(3):
                work.write(b".")
                time.sleep(0.002)
            if name:
                notes[name].step = step
                clocks = Clocks()
                pauses[name][1]()
                notes[name].add(*clocks.ran())
        work.write(b".")
    write_truth(notes.values(), truth)
    del live


def be_neighbour(ready):
    """Keeps the device busy with short kernels, by the driver alone."""
    follow_parent()
    set_name("neighbour")
    gpu = DriverGpu()
    events = [gpu.event() for _ in range(4)]
    step = 0
    # It ends when the file is taken away, as a program does: what CUPTI holds is then handed over.
    while step <= len(events) or os.path.exists(ready):
        if step >= len(events):
            gpu.wait(events[step % len(events)])
        if step == len(events):
            open(ready, "w").close()
        gpu.spin(1 * MS)
        gpu.record(events[step % len(events)])
        step += 1
    gpu.synchronize()


def inject(run, chosen):
    """Runs the cases; returns notes and what became of each case."""
    notes, fates, ready = [], {}, []
    for one in chosen:
        note = Note(one)
        notes.append(note)
        try:
            if one.function.__code__.co_argcount == 2:
                one.function(run, note)
                fates[one.name] = "ran"
                continue
            life = one.function(run)
            ready.append((one, note, life, next(life)))
            fates[one.name] = "ran"
        except Skip as why:
            fates[one.name] = f"skipped: {why}"
        except Exception as error:
            traceback.print_exc()
            fates[one.name] = f"failed: {error!r}"
    if not ready:
        return notes, fates
    steps = Steps(run.gpu, run.twin, run.rng)
    turns = [r for r in ready for _ in range(run.gaps)]
    run.rng.shuffle(turns)
    for _ in range(5):
        steps()
    for number, (one, note, _, fault) in enumerate(turns):
        steps()
        steps()
        steps.fill()
        if fates[one.name] != "ran":
            continue
        note.step = number
        try:
            fault(note)
        except Exception as error:
            traceback.print_exc()
            fates[one.name] = f"failed: {error!r}"
    # So that the last fault ends with a launch, as all do.
    steps()
    run.gpu.synchronize()
    for _, _, life, _ in ready:
        next(life, None)
    return notes, fates


def arguments():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("groups", nargs="?", default="")
    args.add_argument("--list", action="store_true")
    args.add_argument("--lib")
    args.add_argument("--truth")
    args.add_argument("--gaps", type=int, default=32)
    args.add_argument("--twin", action="store_true")
    args.add_argument("--only", default="", help="cases")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--limit", type=int, default=0, metavar="SECONDS", help="ends by a signal then, whatever it does")
    args.add_argument("--scratch", default="/var/tmp", help="folder on a disk")
    args.add_argument("--cgroup", help="folder of a cgroup (v2) that this program moves to")
    args.add_argument("--gang", help="file shared with --be-hog")
    args.add_argument("--fifo", help="where an engine writes")
    args.add_argument("--port", help="file to write the server's port to")
    args.add_argument("--peer", type=lambda text: (text.split(":")[0], int(text.split(":")[1])), help="address of a far helper")
    args.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    for name in ("be-hog", "be-engine", "be-neighbour"):
        args.add_argument("--" + name, metavar="FILE", help=argparse.SUPPRESS)
    return args.parse_args()


def main():
    args = arguments()
    if args.list:
        for one in CASES.values():
            print(json.dumps({"case": one.name, "group": one.group, "cause": one.cause, "twin": one.twin}))
        return
    if args.serve:
        return serve(args.serve[0], args.serve[1:])
    if args.be_engine:
        return be_engine(args.be_engine, args.truth, args.gaps)
    if args.be_neighbour:
        return be_neighbour(args.be_neighbour)
    signal.alarm(args.limit)
    lib = load_library(args.lib)
    if args.be_hog:
        follow_parent()
        return lib.hog_serve(lib.gang_map(args.be_hog.encode()))
    if args.cgroup:
        with open(args.cgroup + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    groups, only = args.groups.split(","), set(filter(None, args.only.split(",")))
    kinds = (AHEAD, OWN, ONLY) if args.twin else (AHEAD, OWN, None)
    chosen = [c for c in CASES.values() if c.group in groups and c.twin in kinds and (not only or c.name in only)]
    run = Run(TorchGpu() if args.driver == "torch" else DriverGpu(), lib, args)
    notes, fates = inject(run, chosen)
    write_truth(notes, args.truth)
    print(json.dumps({"cases": fates, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    main()
