#!/usr/bin/env python3
"""CUPTI turned on in a loop that launches all the time: in which order of activity kinds do kernels come back?

  late_start.py [--cycles 200] [--processes 1] [--loads eager,graph] [--orders NAME,…]

Without gdiag: needs a GPU, gcc, the CUDA toolkit's headers and a python3 with torch. While a PyTorch loop runs, eager or
as a CUDA graph, another thread of the process (late_start.c) turns activity kinds on, waits for a kernel's record for
at most about 80 ms, and turns them off; a cycle takes 16 ms. A process does one order, and ends with the first cycle without
a kernel, because that lasts. Orders (calls are limited to the shim's as soon as they are enabled):

  calls-first          RUNTIME, DRIVER, OVERHEAD, SYNCHRONIZATION, MEMCPY, MEMCPY2, MEMSET, CONCURRENT_KERNEL
  kernels-first        CONCURRENT_KERNEL, then the others as above: what gdiag's shim does
  kernels-only         CONCURRENT_KERNEL
  calls-first, paused  calls-first, but the loop stands at the end of a step, the GPU idle, while kinds are turned on

Prints a row for each order: the cycles that worked in each process, and how the first bad ones failed: 'calls, but no
kernel'; 'nothing', when CUPTI withholds all records; or by no fault of CUPTI, which keeps a buffer while something in it
runs. Raw figures and what was said go to $OUT/late_start.json and .log (or target/gpu). --orders takes 'paused' for the last.
"""

import argparse
import collections
import ctypes
import json
import sys
import tempfile
import threading
import time

import toolkit
from launch_cost import recorded_calls, run
from toolkit import say

ORDERS = {"calls-first": "calls-first", "kernels-first": "kernels-first", "kernels-only": "kernels-only", "paused": "calls-first, paused"}
LOADS = ("eager", "graph")


class Result(ctypes.Structure):
    """As in late_start.c."""
    _fields_ = [(name, ctypes.c_uint64) for name in ("worked", "kernels", "calls", "records", "buffers_out", "when_idle", "no_buffer", "ns")]


def loaded_cupti():
    """The library that PyTorch has loaded."""
    with open("/proc/self/maps") as maps:
        paths = [line.split()[-1] for line in maps if "/libcupti.so" in line]
    return paths[0] if paths else sys.exit("this PyTorch has not loaded libcupti")


def step_of(load):
    """A function that launches a step of a small model, and what has to be kept for it."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    x = torch.randn(64, 512, device="cuda")

    def step():
        return model(x).sum()

    if load == "eager":
        return step, (model, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay, (model, x)


def child(library, load, order, cycles):
    """The loop, with one order of late_start.c in another thread. Prints the result as JSON."""
    import torch

    step, _kept = step_of(load)
    sync = torch.cuda.synchronize
    cupti = loaded_cupti()
    ctypes.CDLL(cupti, mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(library)
    pause_wanted, paused = (ctypes.c_int.in_dll(lib, name) for name in ("pause_wanted", "paused"))
    steps = ctypes.c_uint64.in_dll(lib, "steps")
    for _ in range(200):
        step()
        sync()

    result, status = Result(), []

    def cycle():
        arguments = order.encode(), recorded_calls().encode(), ctypes.c_uint64(cycles), ctypes.byref(result)
        status.append(lib.late_start(*arguments))

    cycling = threading.Thread(target=cycle, daemon=True)
    cycling.start()
    begin = time.monotonic()
    while cycling.is_alive():
        if pause_wanted.value:
            paused.value = 1
            while pause_wanted.value:
                time.sleep(20e-6)
            paused.value = 0
        step()
        sync()
        steps.value += 1
    if status != [0]:
        sys.exit("CUPTI could not be used")
    figures = {name: getattr(result, name) for name, _ in Result._fields_}
    where = {"cupti": cupti, "torch": torch.__version__, "device": torch.cuda.get_device_name()}
    print(json.dumps({**figures, **where, "steps": steps.value, "seconds": round(time.monotonic() - begin, 3)}))


def failure(result, cycles):
    """How the first bad cycle failed, or None."""
    if result["worked"] == cycles:
        return None
    if result["no_buffer"]:
        return "no buffer left"
    if result["when_idle"]:
        return "kernels only once the GPU was idle"
    if result["calls"]:
        return "calls, but no kernel"
    return "other records, but no kernel" if result["records"] else "nothing"


def row(load, order, results, cycles):
    good = [r for r in results if r]
    kinds = collections.Counter(filter(None, (failure(r, cycles) for r in good)))
    how = "; ".join(f"{kind} ({n})" for kind, n in kinds.most_common()) or "none failed"
    out = [r["buffers_out"] for r in good if failure(r, cycles)]
    if out:
        how += f"; buffers that CUPTI kept: {', '.join(map(str, out))}"
    if len(good) < len(results):
        how += f"; {len(results) - len(good)} without a result"
    return f"{load:7}{ORDERS[order]:21}{', '.join(str(r['worked']) for r in good) or '-':32}{how}"


def names(known):
    def parse(text):
        chosen = text.split(",")
        unknown = set(chosen) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"no such name: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return chosen
    return parse


def main():
    if sys.argv[1:2] == ["--child"]:
        library, load, order, cycles = sys.argv[2:]
        return child(library, load, order, int(cycles))
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--cycles", type=int, default=200)
    args.add_argument("--processes", type=int, default=1, help="fresh ones for each row")
    args.add_argument("--loads", type=names(LOADS), default=list(LOADS))
    args.add_argument("--orders", type=names(ORDERS), default=list(ORDERS))
    args = args.parse_args()
    out = toolkit.out_dir()
    with tempfile.TemporaryDirectory(prefix="late-start-") as tmp, open(out + "/late_start.log", "w") as log:
        # Without libcupti: what PyTorch has loaded may be another one than the toolkit's.
        library = toolkit.build("late_start.c", tmp + "/late_start.so", cupti=False, shared=True)
        rows = {}
        for load in args.loads:
            for order in args.orders:
                rows[load, order] = []
                for _ in range(args.processes):
                    command = [sys.executable, __file__, "--child", library, load, ORDERS[order], str(args.cycles)]
                    result = run(command, {}, log, timeout=60 + args.cycles // 10)
                    rows[load, order].append(result)
                    log.flush()
                    if result is None:
                        say(f"{load} {order} did not run; see late_start.log")
    with open(out + "/late_start.json", "w") as f:
        json.dump([{"load": load, "order": order, "cycles": args.cycles, "processes": results} for (load, order), results in rows.items()], f)

    results = [r for of_row in rows.values() for r in of_row if r]
    if not results:
        sys.exit("nothing ran")
    print(f"{results[0]['device']}, PyTorch {results[0]['torch']}, {results[0]['cupti']}")
    print(f"{'load':7}{'order':21}{f'cycles that worked, of {args.cycles}':32}how the first bad one failed (processes)")
    for (load, order), of_row in rows.items():
        print(row(load, order, of_row, args.cycles))


if __name__ == "__main__":
    main()
