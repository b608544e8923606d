#!/usr/bin/env python3
"""torch.profiler in a process that carries gdiag's shim: does it still get its CUDA events?

  profiler_coexist.py [--sessions 2] [--wait FILE] [--expect-events]

Runs that many profiler sessions over a short loop of operations and prints one line of JSON with the CUDA events of
each. --expect-events makes a session without any an error. --wait FILE: after the sessions run the loop until FILE
is there, so that a recorder can attach to a process whose profiler holds CUPTI.
"""

import argparse
import json
import os
import sys
import time

import torch


def work(steps):
    a = torch.randn(256, 256, device="cuda")
    for _ in range(steps):
        a = torch.nn.functional.relu(a @ a * 0.01)
    torch.cuda.synchronize()


def session():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as p:
        work(200)
    return sum(e.count for e in p.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--sessions", type=int, default=2)
    args.add_argument("--wait", metavar="FILE")
    args.add_argument("--expect-events", action="store_true")
    args = args.parse_args()
    work(50)
    events = [session() for _ in range(args.sessions)]
    print(json.dumps({"pid": os.getpid(), "injected": os.environ.get("CUDA_INJECTION64_PATH"), "cuda_events": events}), flush=True)
    deadline = time.monotonic() + 60
    while args.wait and not os.path.exists(args.wait) and time.monotonic() < deadline:
        work(50)
    if args.expect_events and not all(events):
        sys.exit("a session of torch.profiler saw no CUDA event")


if __name__ == "__main__":
    main()
