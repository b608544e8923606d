"""Faults that somebody else makes: helpers, whoever takes the CPU, loaders, and who should bring work.

What is outside of the job is started by scenarios.py.
"""

import ctypes
import mmap
import os
import random
import select
import socket
import time
import zlib

from faultlib import AHEAD, MS, OWN, US, Clocks, Helper, Jumps, Skip, ask_by_tcp, case, evict, need_cold, now


# Helpers that are part of the job


@case("helper-compute", "host", "host.compute", AHEAD)
def helper_compute(run):
    """Text comes from a helper process, by a pipe."""
    helper = Helper("compute")

    def fault(note):
        clocks = Clocks()
        helper.ask(run.length(8))
        span = helper.answer()
        note.within(span, *clocks.waited()[:2])

    yield fault
    helper.close()


@case("peer-sleep", "host", "host.sleep", AHEAD)
def peer_sleep(run):
    """A peer on this machine answers late, because it sleeps."""
    helper = Helper("tcp", "127.0.0.1")
    with ask_by_tcp(("127.0.0.1", helper.answer()[0])) as connection:

        def fault(note):
            clocks = Clocks()
            connection.sendall(b"%d\n" % run.length(8))
            connection.recv(100)
            note.add(*clocks.waited())

        yield fault
    helper.close()


@case("network", "network", "host.network", AHEAD)
def network(run):
    """A peer in another network namespace, as in another container."""
    with ask_by_tcp(run.options.peer) as connection:

        def fault(note):
            clocks = Clocks()
            connection.sendall(b"%d\n" % run.length(8))
            connection.recv(100)
            note.add(*clocks.waited())

        yield fault


# The CPU is taken away


def pinned_to_one(run, gang):
    """Shares one CPU with hogs."""
    everywhere, jumps = os.sched_getaffinity(0), Jumps()

    def fault(note):
        cpu = max(everywhere)
        os.sched_setaffinity(0, {cpu})
        try:
            jumps.note(run.lib.hog_turn(gang, cpu, run.length(15), jumps.spans, jumps.MOST), note)
        finally:
            os.sched_setaffinity(0, everywhere)

    return fault


@case("preempted", "cpu", "host.preempted", AHEAD)
def preempted(run):
    """Foreign processes on the dispatcher's CPU, started by scenarios.py."""
    if not run.options.gang:
        raise Skip("needs --gang")
    yield pinned_to_one(run, run.lib.gang_map(run.options.gang.encode()))


@case("affinity", "cpu", "host.affinity", AHEAD)
def affinity(run):
    """The job's threads share one CPU, while others are idle."""
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("needs two CPUs")
    gang = run.lib.gang_map(None)
    run.lib.hog_threads(gang, 3)
    yield pinned_to_one(run, gang)


@case("oversubscribed", "cpu", "host.oversubscribed", AHEAD)
def oversubscribed(run):
    """Three busy threads of the job for every CPU."""
    gang, jumps = run.lib.gang_map(None), Jumps()
    run.lib.hog_threads(gang, 3 * len(os.sched_getaffinity(0)))

    def fault(note):
        jumps.note(run.lib.hog_turn(gang, -1, run.length(20), jumps.spans, jumps.MOST), note)

    yield fault


@case("stopped", "cpu", "host.stopped", AHEAD)
def stopped(run):
    """SIGSTOP, and SIGCONT later, by another process."""
    helper, jumps = Helper("stopper", os.getpid()), Jumps()

    def fault(note):
        ns = run.length(8)
        helper.ask(ns)
        jumps.note(run.lib.note_jumps(ns + 4 * MS, jumps.spans, jumps.MOST), note)
        helper.answer()

    yield fault
    helper.close()


@case("throttled", "cgroup", "host.throttled", AHEAD)
def throttled(run):
    """A quota of 2 ms in 10."""
    limit = cgroup_file(run, "cpu.max")
    jumps = Jumps()

    def fault(note):
        os.pwrite(limit, b"2000 10000", 0)
        count = run.lib.note_jumps(30 * MS, jumps.spans, jumps.MOST)
        os.pwrite(limit, b"max 100000", 0)
        jumps.note(count, note)

    yield fault
    os.close(limit)


@case("reclaim", "cgroup", "host.reclaim")
def reclaim(run):
    """The group's memory is full of file pages, and the dispatcher needs some."""
    limit, current, pressure = (cgroup_file(run, "memory." + name) for name in ("high", "current", "pressure"))
    size = 64 << 20
    file = run.file(4 * size)

    def stalled():
        """How long the group's threads have waited for memory, in ns."""
        return int(os.pread(pressure, 200, 0).split(b"total=")[1].split()[0]) * 1000

    try:
        stalled()
    except (OSError, IndexError) as error:
        raise Skip(f"memory.pressure: {error}") from error

    def fault(note):
        for at in range(0, 4 * size, 1 << 20):
            os.pread(file, 1 << 20, at)
        # All that it needs from here on must be taken from somewhere.
        os.pwrite(limit, b"%d" % int(os.pread(current, 64, 0)), 0)
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            address, before = ctypes.addressof(ctypes.c_char.from_buffer(memory)), stalled()
            start = now()
            ctypes.memset(address, 1, size)
            end = now()
            note.add(start, end, min(stalled() - before, end - start))
        finally:
            os.pwrite(limit, b"max", 0)
            memory.close()

    yield fault
    os.close(file)


def cgroup_file(run, name):
    if not run.options.cgroup:
        raise Skip("no cgroup")
    try:
        return os.open(f"{run.options.cgroup}/{name}", os.O_RDONLY if name == "memory.current" else os.O_RDWR)
    except OSError as error:
        raise Skip(f"cgroup: {error}") from error


# Loaders: they drive their steps themselves


def train_from(run, note, dataset, workers, pin=False):
    """Waits for a batch, copies it, and computes on it."""
    torch = run.torch()
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, prefetch_factor=2, pin_memory=pin)
    batches, work = iter(loader), (8 if run.twin else 2) * MS
    for _ in range(4 * workers if run.twin else 3):
        next(batches)
    for step in range(run.gaps):
        note.step = step
        clocks = Clocks()
        batch = next(batches)
        note.add(*clocks.waited())
        if run.twin and step:
            # The batch was there before the device was done with the one before.
            run.gpu.synchronize()
        batch.to("cuda", non_blocking=pin)
        run.gpu.spin(work)
        if not run.twin:
            run.gpu.synchronize()
    run.gpu.synchronize()
    del batches


class Decoded:
    """Items that take 20 ms of CPU each, as decoding an image does."""

    raw = zlib.compress(os.urandom(1 << 16))

    def __init__(self, torch):
        self.torch = torch

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        self.torch.set_num_threads(1)
        end = time.thread_time() + 0.020
        while time.thread_time() < end:
            zlib.decompress(self.raw)
        return self.torch.full((16, 256), float(index % 7))


class FromDisk(Decoded):
    """Items that are gathered from all over a cold file: it is the disk that takes the time, not the copying."""

    def __init__(self, torch, file, size):
        super().__init__(torch)
        self.file, self.size = file, size

    def __getitem__(self, index):
        evict(self.file)
        end, piece = now() + 10 * MS, 16 << 10
        while now() < end:
            os.pread(self.file, piece, random.randrange(self.size // piece) * piece)
        return self.torch.full((16, 256), float(index % 7))


@case("loader", "loader", "host.data-loading", OWN)
def loader(run, note):
    """One worker is too few; eight are enough."""
    train_from(run, note, Decoded(run.torch()), 8 if run.twin else 1)


@case("loader-pinned", "loader", "host.data-loading", OWN)
def loader_pinned(run, note):
    """The same with a thread that pins batches in between."""
    train_from(run, note, Decoded(run.torch()), 8 if run.twin else 1, pin=True)


@case("loader-disk", "loader", "host.disk-read")
def loader_disk(run, note):
    """The worker reads from a cold file."""
    size = 64 << 20
    file = run.file(size)
    need_cold(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    train_from(run, note, FromDisk(run.torch(), file, size), 1)
    os.close(file)


# Work that comes from outside of the job: scenarios.py starts the other end


@case("engine", "engine", "host.gc")
def engine(run, note):
    """Steps come by a pipe from an engine that is not recorded; it writes the truth."""
    with open(run.options.fifo, "rb", buffering=0) as work:
        while work.read(1):
            for _ in range(3):
                run.gpu.spin(200 * US)


@case("accept", "server", "host.no-demand")
def accept(run, note):
    """A server that waits for the next connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        say_port(run, "accept", listener)
        for step in range(run.gaps + 3):
            clocks = Clocks()
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                span = clocks.waited()
                if step >= 3:
                    note.step = step
                    note.add(*span)
                run.gpu.spin(1 * MS)
                run.gpu.synchronize()
                connection.sendall(b"done\n")


@case("request", "server", "host.no-demand")
def request(run, note):
    """A server that waits for the next request of a connection, by epoll."""
    with socket.create_server(("127.0.0.1", 0)) as listener, select.epoll() as poller:
        say_port(run, "request", listener)
        connection, _ = listener.accept()
        poller.register(listener, select.EPOLLIN)
        poller.register(connection, select.EPOLLIN)
        for step in range(run.gaps + 3):
            clocks = Clocks()
            poller.poll()
            span = clocks.waited()
            connection.recv(100)
            if step >= 3:
                note.step = step
                note.add(*span)
            run.gpu.spin(1 * MS)
            run.gpu.synchronize()
            connection.sendall(b"done\n")
        connection.close()


def say_port(run, kind, listener):
    with open(run.options.port + ".new", "w") as file:
        file.write(f"{kind} {listener.getsockname()[1]}")
    os.rename(run.options.port + ".new", run.options.port)
