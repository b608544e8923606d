"""A rank that is late: the other one waits for it, on a device of its own."""

import multiprocessing
import time

from gpu import Gpu
from load import AHEAD, Clocks, Steps, case, follow_parent, generator, keep_away, now, set_name, to_next_fault
from on_device import TWO_DEVICES
from work import heap_collector


def late_rank(pipe, ahead, seed, prepare):
    """Runs its steps, is late, and meets the other rank: both tell each other that they are there."""
    follow_parent()
    set_name("rank-1")
    rng = generator(seed, "rank")
    gpu = Gpu(1)
    steps = Steps(gpu, ahead, rng)
    late = prepare(rng)
    steps.fill()
    pipe.send("ready")
    while pipe.recv() != "end":
        to_next_fault(steps)
        pipe.send(late())
    gpu.synchronize()


def sleeping(rng):
    def late():
        clocks = Clocks()
        time.sleep(rng.uniform(0.016, 0.024))
        return clocks.waited()

    return late


def collecting(_rng):
    return heap_collector()


def with_late_rank(run, prepare):
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    rank = context.Process(target=late_rank, args=(other, run.ahead, run.rng.randrange(1 << 30), prepare))
    rank.start()
    pipe.recv()
    pipe.send("begin")

    def meet(truth):
        keep_away(rank.pid)
        start = now()
        span = pipe.recv()
        # Nobody waits for a twin's.
        truth.add(span if run.twin else span.within(start, now()))
        pipe.send("go on")

    yield meet
    # It is on its way to one more meeting.
    pipe.recv()
    pipe.send("end")
    rank.join()
    pipe.close()


@case("rank-sleep", "host.sleep", AHEAD, env=TWO_DEVICES)
def rank_sleep(run):
    """The other rank sleeps before it meets this one at a pipe."""
    yield from with_late_rank(run, sleeping)


@case("rank-gc", "host.gc", AHEAD, env=TWO_DEVICES)
def rank_gc(run):
    """The other rank collects garbage before it meets this one at a pipe."""
    yield from with_late_rank(run, collecting)
