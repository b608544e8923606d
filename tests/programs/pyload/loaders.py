"""Faults of a data loader: too few workers, which decode or read from a cold disk, and a thread in between.

The loader is made as PyTorch's is: each worker process has a queue of indices and puts its batches into one queue of
all; batches are asked for ahead.
"""

import multiprocessing
import os
import queue
import threading

from load import AHEAD, case, follow_parent, now, set_name
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
        self.workers = [context.Process(target=worker_loop, args=(dataset, indices, self.batches, name), daemon=True) for indices in self.indices]
        self.pinned = queue.Queue() if pin else None
        self.thread = threading.Thread(target=pin_memory_loop, args=(self.batches, self.pinned), daemon=True) if pin else None
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

    def ask(self, ns):
        self.indices[self.turn % len(self.indices)].put(ns)
        self.turn += 1

    def __next__(self):
        return (self.pinned or self.batches).get()


def loading(run, loader, ms=18):
    """The first batches are asked for here, and then one for each that came. A step takes one of each worker: they
    finish together."""
    with loader:
        for _ in loader.workers:
            loader.ask(run.length(ms))

        def fault(truth):
            for _ in loader.workers:
                start = now()
                data, spans = next(loader)
                end = now()
                loader.ask(run.length(ms))
                assert data
                truth.add_within(spans, start, end)

        yield fault
        for _ in loader.workers:
            next(loader)


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
