"""The hardest known case: an engine process collects garbage, and workers in other processes have nothing to launch.

No GPU trace shows it. The chain must end at the thread of the engine that is in its collector. Workers are spawned, as
the driver does not outlive a fork.
"""

import multiprocessing
import os

import outside
from gpu import Gpu
from helpers import Helper
from load import AHEAD, Span, Steps, case, follow_parent, generator, keep_away, set_name, to_next_fault
from work import heap_collector


def engine_loop(run_step, collect, gaps):
    """Runs steps, and collects between them; yields each collection: (number, span)."""
    for number in range(gaps):
        to_next_fault(run_step)
        yield number, collect()
    run_step()


def worker_loop(receive, send, ahead, number):
    """`receive()` returns work, or None at the end."""
    follow_parent()
    set_name("worker")
    gpu = Gpu()
    steps = Steps(gpu, ahead, generator(number, "worker"))
    steps.fill()
    send("ready")
    for _ in iter(receive, None):
        send(steps())
    gpu.synchronize()
    send("done")


def piped_worker(pipe, ahead, number):
    worker_loop(pipe.recv, pipe.send, ahead, number)


def queued_worker(requests, results, ahead, number):
    worker_loop(requests.get, results.put, ahead, number)


class Piped:
    """Workers that have a pipe each."""

    def __init__(self, count, ahead):
        context = multiprocessing.get_context("spawn")
        self.pipes, self.workers = [], []
        for number in range(count):
            here, there = context.Pipe()
            self.pipes.append(here)
            self.workers.append(context.Process(target=piped_worker, args=(there, ahead, number)))

    def send(self, work):
        for pipe in self.pipes:
            pipe.send(work)

    def receive(self):
        return [pipe.recv() for pipe in self.pipes]

    def close(self):
        for pipe in self.pipes:
            pipe.close()


class Queued:
    """Workers that have a queue each, into which a thread of the engine writes, and one for all results."""

    def __init__(self, count, ahead):
        context = multiprocessing.get_context("spawn")
        self.results = context.Queue()
        self.requests = [context.Queue() for _ in range(count)]
        self.workers = []
        for number, requests in enumerate(self.requests):
            arguments = (requests, self.results, ahead, number)
            self.workers.append(context.Process(target=queued_worker, args=arguments))

    def send(self, work):
        for requests in self.requests:
            requests.put(work)

    def receive(self):
        return [self.results.get() for _ in self.requests]

    def close(self):
        for shared in [self.results, *self.requests]:
            shared.close()
            shared.join_thread()


def run_engine(workers, gaps):
    """An engine with its workers, from start to end; returns its collections."""
    for worker in workers.workers:
        worker.start()
    workers.receive()
    # Only now, so that no worker has it.
    collect = heap_collector()

    def run_step():
        for worker in workers.workers:
            keep_away(worker.pid)
        workers.send("work")
        return all(workers.receive())

    collections = list(engine_loop(run_step, collect, gaps))
    workers.send(None)
    workers.receive()
    for worker in workers.workers:
        worker.join()
    workers.close()
    return collections


def note(truth, collections):
    for truth.step, span in collections:
        truth.add(Span(*span))


@case("engine", "host.gc", AHEAD)
def engine(run, truth):
    """The engine collects garbage; its worker waits on a pipe."""
    note(truth, run_engine(Piped(1, run.ahead), run.gaps))


@case("engine-queue", "host.gc", AHEAD)
def engine_queue(run, truth):
    """The engine collects garbage; two workers wait on queues, into which a thread of the engine writes."""
    note(truth, run_engine(Queued(2, run.ahead), run.gaps))


@case("engine-child", "host.gc", AHEAD)
def engine_child(run, truth):
    """As `engine`, but the engine is a child of a process that only waits for it."""

    def serve(channel):
        channel.send(run_engine(Piped(1, run.ahead), run.gaps))

    with Helper("engine", serve) as helper:
        note(truth, helper.answer())


@outside.service("engine")
def engine_service(channel, request):
    collect = heap_collector()
    collected = []  # since the last step

    def run_step():
        channel.send({"engine": os.getpid(), "collected": collected})
        collected.clear()
        return channel.receive()

    for collection in engine_loop(run_step, collect, request["gaps"]):
        collected.append(collection)


@case("engine-outside", "host.gc", AHEAD, outside=True)
def engine_outside(run, truth):
    """An engine that is no part of the job collects garbage; the worker, here the whole job, waits on a socket."""
    channel = outside.connect("engine", gaps=run.gaps)
    steps = Steps(run.gpu, run.ahead, run.rng)
    steps.fill()
    for work in iter(channel.receive, None):
        note(truth, work["collected"])
        full = steps()
        keep_away(work["engine"])
        channel.send(full)
    run.gpu.synchronize()
    channel.close()
