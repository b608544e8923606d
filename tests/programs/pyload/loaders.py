"""Faults of a data loader: too few workers, which decode or read from a cold disk, and a thread in between.

The loader is made as PyTorch's is: each worker process has a queue of indices and puts its batches into one queue of
all; batches are asked for ahead.
"""

import multiprocessing
import os
import queue
import threading

from load import AHEAD, LIBC, case, follow_parent, now, set_name
from on_disk import ColdFile
from work import Image

BATCH = bytes(128 << 10)


class Images:
    """A data set whose items are decoded."""

    def __init__(self):
        self.image = Image()

    def __getitem__(self, ns):
        row, span = self.image.decode(ns)
        return row + BATCH, [span]

    def close(self):
        pass


class Files:
    """A data set whose items are read from a cold disk."""

    def __init__(self, file):
        self.file = file

    def __getitem__(self, ns):
        return BATCH, self.file.read(ns)

    def close(self):
        os.close(self.file.fd)


def worker_loop(dataset, indices, batches, name):
    follow_parent()
    if name:
        set_name(name)
    for index in iter(indices.get, None):
        batches.put(dataset[index])


def pin_memory_loop(batches, pinned):
    set_name("pt_data_pin")
    for batch in iter(batches.get, None):
        data, spans = batch
        pinned.put((bytearray(data), spans))


class Loader:
    """`workers` processes, with one item each asked for ahead."""

    def __init__(self, dataset, start="fork", workers=1, name="pt_data_worker", pin=False):
        context = multiprocessing.get_context(start)
        self.dataset = dataset
        self.batches = context.Queue()
        self.indices = [context.Queue() for _ in range(workers)]
        self.workers = []
        for indices in self.indices:
            arguments = (dataset, indices, self.batches, name)
            self.workers.append(context.Process(target=worker_loop, args=arguments, daemon=True))
        self.pinned, self.thread = None, None
        if pin:
            self.pinned = queue.Queue()
            self.thread = threading.Thread(target=pin_memory_loop, args=(self.batches, self.pinned), daemon=True)
        self.turn = 0

    def __enter__(self):
        for worker in self.workers:
            worker.start()
        if self.thread:
            self.thread.start()
        return self

    def __exit__(self, *_):
        for indices in self.indices:
            indices.put(None)
        for worker in self.workers:
            worker.join()
        if self.thread:
            self.batches.put(None)
            self.thread.join()
        for shared in [self.batches, *self.indices]:
            shared.close()
            shared.join_thread()
        self.dataset.close()

    def spread(self):
        """Gives each worker a CPU of its own, but not this one if there are enough."""
        here = LIBC.sched_getcpu()
        cpus = sorted(os.sched_getaffinity(0), key=lambda cpu: cpu == here)
        for number, worker in enumerate(self.workers):
            os.sched_setaffinity(worker.pid, {cpus[number % len(cpus)]})

    def ask(self, ns):
        self.indices[self.turn % len(self.indices)].put(ns)
        self.turn += 1

    def take(self):
        return (self.pinned or self.batches).get()


class Batches:
    """Of each step, one batch of each worker: they finish together."""

    def __init__(self, run, ask, take, workers=1, ms=24):
        self.run, self.ask, self.take, self.workers, self.ms = run, ask, take, workers, ms
        # A twin's would be there long before the next fault.
        self.ahead = not run.twin
        # Starting may take longer than what a twin has queued.
        self._ask()
        for _ in range(workers):
            take()
        if self.ahead:
            self._ask()

    def _ask(self):
        for _ in range(self.workers):
            self.ask(self.run.length(self.ms))

    def __call__(self, truth):
        if not self.ahead:
            self._ask()
        for _ in range(self.workers):
            start = now()
            data, spans = self.take()
            truth.add_within(spans, start, now())
            assert data
        if self.ahead:
            self._ask()

    def finish(self):
        if self.ahead:
            for _ in range(self.workers):
                self.take()


def loading(run, loader):
    with loader:
        loader.spread()
        fault = Batches(run, loader.ask, loader.take, len(loader.workers))
        yield fault
        fault.finish()


@case("loader", "host.data-loading", AHEAD)
def loader_(run):
    """One worker process decodes images, and is too slow; forked."""
    yield from loading(run, Loader(Images()))


@case("loader-spawn", "host.data-loading", AHEAD)
def loader_spawn(run):
    """As `loader`, spawned, and called what its parent is."""
    yield from loading(run, Loader(Images(), start="spawn", name=None))


@case("loader-two", "host.data-loading", AHEAD)
def loader_two(run):
    """As `loader`, with two workers."""
    yield from loading(run, Loader(Images(), workers=2))


@case("loader-pin", "host.data-loading", AHEAD)
def loader_pin(run):
    """As `loader`, through a thread of the dispatcher's process that copies the batches."""
    yield from loading(run, Loader(Images(), pin=True))


@case("loader-disk", "host.disk-read", AHEAD)
def loader_disk(run):
    """A worker process reads from a cold disk."""
    yield from loading(run, Loader(Files(ColdFile(run))))


@case("loader-disk-pin", "host.disk-read", AHEAD)
def loader_disk_pin(run):
    """As `loader-disk`, through a thread of the dispatcher's process that copies the batches."""
    yield from loading(run, Loader(Files(ColdFile(run)), pin=True))


@case("loader-thread", "host.data-loading", AHEAD)
def loader_thread(run):
    """Images are decoded ahead by a thread of the dispatcher's process."""
    dataset = Images()
    indices, batches = queue.Queue(), queue.Queue()

    def prefetch_loop():
        set_name("prefetch")
        for index in iter(indices.get, None):
            batches.put(dataset[index])

    thread = threading.Thread(target=prefetch_loop, daemon=True)
    thread.start()
    fault = Batches(run, indices.put, batches.get)
    yield fault
    fault.finish()
    indices.put(None)
    thread.join()
