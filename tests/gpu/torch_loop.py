#!/usr/bin/env python3
"""An eager loop of one small operation, timed per call: what a tracer adds to a launch from Python.

  torch_loop.py CALLS [none|cuda|both]      none: no profiler of its own; cuda, both: inside torch.profiler

One line of JSON on stdout.
"""

import json
import statistics
import sys
import time

import torch


CHUNK = 256


def loop(x, calls):
    """Time per call of each CHUNK calls, which end with a synchronisation."""
    times = []
    for _ in range(calls // CHUNK):
        t0 = time.perf_counter_ns()
        for _ in range(CHUNK):
            x.add_(1.0)
        torch.cuda.synchronize()
        times.append((time.perf_counter_ns() - t0) / CHUNK)
    return times


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
    print(json.dumps({"calls": len(ns) * CHUNK, "mean": round(statistics.mean(ns), 1), "p50": round(statistics.median(ns), 1), "cuda_events": events}))


if __name__ == "__main__":
    main()
