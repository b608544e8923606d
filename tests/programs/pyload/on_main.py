"""Faults of the dispatcher itself: it collects, computes, sleeps, or runs other programs."""

import os
import pickle
import select
import subprocess
import time

from helpers import elsewhere
from load import AHEAD, Clocks, case, now
from work import Automatic, Detokenizer, heap_collector


@case("gc", "host.gc", AHEAD)
def gc_(run):
    """A collection of a big heap on the dispatcher; the twin's is in another process."""
    if run.twin:
        yield from elsewhere("collector", heap_collector)
        return
    collect = heap_collector()

    def fault(truth):
        truth.add(collect())

    yield fault


@case("gc-automatic", "host.gc", AHEAD)
def gc_automatic(run):
    """As `gc`, but nobody asks for the collection: allocations do."""
    automatic = Automatic()

    def fault(truth):
        truth.add(automatic.provoke())

    yield fault
    automatic.close()


@case("compute", "host.compute", AHEAD)
def compute(run):
    """A detokeniser on the dispatcher."""
    detokenizer = Detokenizer()

    def fault(truth):
        truth.add(detokenizer.detokenize(run.length(12)))

    yield fault


@case("unpickle", "host.compute", AHEAD)
def unpickle(run):
    """Batches of more than 50 MB unpickled on the dispatcher: no pin thread does it."""
    batch = pickle.dumps([(number, bytes(64 << 10), {"label": number}) for number in range(840)], 4)

    def fault(truth):
        clocks = Clocks()
        pickle.loads(batch)
        truth.add(clocks.ran())

    yield fault


@case("sleep", "host.sleep", AHEAD)
def sleep(run):
    """A pause before the next step."""

    def fault(truth):
        clocks = Clocks()
        time.sleep(run.length(8) / 1e9)
        truth.add(clocks.waited())

    yield fault


@case("poll", "host.sleep", AHEAD)
def poll(run):
    """Work is looked for every 5 ms, by select without descriptors."""

    def fault(truth):
        until = now() + run.length(12)
        while now() < until:
            clocks = Clocks()
            select.select([], [], [], 0.005)
            truth.add(clocks.waited())

    yield fault


@case("subprocess", "host.subprocess", AHEAD)
def subprocess_(run):
    """A program is run, and waited for, each time: nvidia-smi, in the real cases."""

    def fault(truth):
        until = now() + run.length(8)
        while now() < until:
            clocks = Clocks()
            subprocess.run(["true"], check=True)
            # The rest is Python, at work on its side of it.
            truth.add(clocks.waited())

    yield fault


@case("fork", "host.subprocess", AHEAD)
def fork(run):
    """A process with a big heap forks, and waits for its child."""
    heap = bytearray(400 << 20)
    for page in range(0, len(heap), 4096):
        heap[page] = 1

    def fault(truth):
        clocks = Clocks()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        truth.add(clocks.ran())

    yield fault
