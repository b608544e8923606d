#!/usr/bin/env python3
"""Ranks that meet after every step, each on a device of its own, and one of them may be late: for as long as they run.

  lockstep.py [--ranks 2] [--seconds 60] [--fault none|sleep|compute|helper|kernels] [--slow 1] [--ms 20] [--collective] [--name N]

Needs GDIAG_SIM_DEVICES as large as --ranks. The first line says the pids: "ranks PID PID...", when all run.
The faults are of every step of rank --slow: it sleeps, it computes, it waits for a helper process that computes, or
its kernels take so long. The ranks meet on the host, or with --collective on their devices, as those of a library
for collectives do: each has a kernel that runs until the last one has come.
"""

import argparse
import multiprocessing
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from gpu import Gpu  # noqa: E402
from helpers import Helper  # noqa: E402
from load import MS, follow_parent, now, set_name  # noqa: E402


def compute(ms):
    until = now() + int(ms * MS)
    while now() < until:
        pass


def serve(channel):
    for ms in iter(channel.receive, None):
        compute(ms)
        channel.send("done")


def rank(number, args, pipe):
    follow_parent()
    set_name(args.name or "rank-%d" % number)
    fault = args.fault if number == args.slow else "none"
    # Before the driver is there, which does not outlive a fork.
    helper = Helper("helper", serve) if fault == "helper" else None
    gpu = Gpu(number)
    collective = gpu.cu.made(gpu.cu.cuModuleGetFunction, gpu.module, b"ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    spin, late = gpu.kernel, args.fault != "none"
    pipe.send(os.getpid())
    while pipe.recv() == "step":
        for _ in range(4):
            gpu.spin(500_000)
        if fault == "kernels":
            gpu.spin(int(args.ms * MS))
        if fault == "sleep":
            gpu.synchronize()
            time.sleep(args.ms / 1000)
        elif fault == "compute":
            gpu.synchronize()
            compute(args.ms)
        elif fault == "helper":
            gpu.synchronize()
            helper.ask(args.ms)
            helper.answer()
        if args.collective:
            # The last one to come has nobody to wait for.
            waits = args.ms if late and number != args.slow else 0
            gpu.kernel, gpu._parameters = collective, {}
            gpu.spin(200_000 + int(waits * MS))
            gpu.kernel, gpu._parameters = spin, {}
        gpu.synchronize()
        pipe.send("done")
    if helper:
        helper.channel.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--fault", choices=["none", "sleep", "compute", "helper", "kernels"], default="none")
    parser.add_argument("--slow", type=int, default=1)
    parser.add_argument("--ms", type=float, default=20)
    parser.add_argument("--collective", action="store_true")
    parser.add_argument("--name", help="what all ranks call themselves")
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for number in range(args.ranks):
        here, there = context.Pipe()
        pipes.append(here)
        ranks.append(context.Process(target=rank, args=(number, args, there)))
        ranks[-1].start()
    print("ranks", *[pipe.recv() for pipe in pipes], flush=True)
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        for pipe in pipes:
            pipe.send("step")
        for pipe in pipes:
            pipe.recv()
    for pipe in pipes:
        pipe.send("end")
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()
