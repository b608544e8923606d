#!/usr/bin/env python3
"""An eager loop of one small operation, timed per call: what a tracer adds to a launch from Python.

  torch_loop.py CALLS [none|cuda|both]      none: no profiler of its own; cuda, both: inside torch.profiler

One line of JSON on stdout.
"""

import json
import sys
import time

import torch


def loop(x, calls):
    t0 = time.perf_counter_ns()
    for i in range(calls):
        x.add_(1.0)
        if i % 256 == 255:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - t0) / calls


def main():
    calls = int(sys.argv[1])
    profiler = sys.argv[2] if len(sys.argv) > 2 else "none"
    x = torch.zeros(256, device="cuda")
    loop(x, 5000)
    events = None
    if profiler == "none":
        ns = loop(x, calls)
    else:
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        if profiler == "both":
            kinds.append(torch.profiler.ProfilerActivity.CPU)
        with torch.profiler.profile(activities=kinds) as p:
            loop(x, 1000)
            ns = loop(x, calls)
        events = sum(e.count for e in p.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA)
    print(json.dumps({"calls": calls, "mean": round(ns, 1), "cuda_events": events}))


if __name__ == "__main__":
    main()
