"""Collects garbage, and does other things meanwhile, for tests/python_stacks.rs.

Says of each thing, in one JSON line, which thread did it and when, on the clock of the samples.
"""
import gc
import json
import sys
import threading
import time

LEAST = 300_000_000
done = []


def ran(what, start):
    done.append(
        {"what": what, "thread": threading.get_native_id(), "start": start, "end": time.monotonic_ns()}
    )


def compute(what):
    start = time.monotonic_ns()
    while time.monotonic_ns() < start + LEAST:
        for _ in range(500):
            pass
    ran(what, start)


class Garbage:
    """Its finalizer is run by the collector, since it refers to itself."""

    def __init__(self, finalizer):
        self.own = self
        self.finalizer = finalizer

    def __del__(self):
        self.finalizer()


def meanwhile(finalizer):
    """A collection in which another thread computes while the finalizer runs."""
    go = threading.Event()

    def other():
        go.wait()
        compute("other")

    thread = threading.Thread(target=other)
    thread.start()
    Garbage(lambda: finalizer(go, thread))
    gc.collect()


def waits(go, thread):
    go.set()
    thread.join()
    compute("finalizer")


def competes(go, thread):
    go.set()
    while thread.is_alive():
        for _ in range(500):
            pass


gc.disable()
heap = []
took = 0
while took < LEAST:
    heap += [{"number": n, "tokens": [n]} for n in range(100_000)]
    start = time.monotonic_ns()
    gc.collect()
    took = time.monotonic_ns() - start

print("ready", flush=True)
sys.stdin.readline()
compute("compute")
start = time.monotonic_ns()
gc.collect()
ran("collect", start)
compute("compute")
meanwhile(waits)
compute("compute")
meanwhile(competes)
compute("compute")
for thing in done:
    print(json.dumps(thing))
