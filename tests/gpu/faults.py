#!/usr/bin/env python3
"""A PyTorch program with known faults: it injects each at a known time and writes when that was.

  faults.py GROUP[,GROUP] --lib LIB --truth FILE [--gaps 32] [--twin] [--only CASE,CASE] [--driver torch|cuda]
  faults.py --list

The faults of a group come in random order, each followed by steps that wait for the device. With --twin the same
calls are made while the device has work queued, or so that they take no time: no gap is due.
Truth: a line of JSON for each fault, CLOCK_MONOTONIC: for `ns` of the time between `start_ns` and `end_ns` it was in
effect. The last line printed says, as JSON, which cases ran, and why others did not.
--lib: faults.c as a library. --driver cuda: without PyTorch; what needs it is left out.
scenarios.py runs this under gdiag.
"""

import argparse
import ctypes
import gc
import json
import mmap
import os
import pickle
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import zlib

from faultlib import (AHEAD, CASES, MS, ONLY, OWN, PTX, US, Case, Clocks, DriverGpu, Helper, Jumps, Note, Run, Skip, Span, Steps, TorchGpu,
                      ask_by_tcp, case, evict, follow_parent, load_library, need_cold, now, set_name, write_truth)

# A collection that is not a fault would be wrong in every truth. Those that are faults are asked for.
gc.disable()

LATENCY = ["gpu.launch-latency"]


# CUDA calls


@case("item", "host", "host.sync", besides=LATENCY)
def item(run):
    """.item() after each short kernel: the gaps are the refills."""
    x = run.torch().ones(256, device="cuda")

    def fault(note):
        start = now()
        while now() < start + 3 * MS:
            run.gpu.spin(50 * US)
            x[0].item()
        note.add(start, now())

    yield fault


@case("nonzero", "host", "host.sync", besides=LATENCY)
def nonzero(run):
    """The size of a result is waited for, as boolean indexing does."""
    x = run.torch().ones(256, device="cuda")

    def fault(note):
        start = now()
        while now() < start + 3 * MS:
            run.gpu.spin(150 * US)
            x.nonzero()
        note.add(start, now())

    yield fault


@case("synchronize", "host", "host.sync", besides=LATENCY)
def synchronize(run):
    def fault(note):
        start = now()
        while now() < start + 3 * MS:
            run.gpu.spin(50 * US)
            run.gpu.synchronize()
        note.add(start, now())

    yield fault


@case("no-item", "host", "host.sync", ONLY)
def no_item(run):
    """The loss stays on the device."""
    x, total = (run.torch().ones(256, device="cuda") for _ in range(2))

    def fault(note):
        start = now()
        while now() < start + 3 * MS:
            run.gpu.spin(50 * US)
            total.add_(x)
        note.add(start, now())

    yield fault


# What the driver moves in one piece: the device is idle for most of such a copy. A larger one keeps it busy.
PIECE = 1 << 20


@case("pageable-to-host", "host", "host.pageable-copy")
def pageable_to_host(run):
    torch = run.torch()
    x = torch.ones(PIECE, dtype=torch.uint8, device="cuda")

    def fault(note):
        until = now() + run.length(8)
        while now() < until:
            start = now()
            x.to("cpu")
            note.add(start, now())

    yield fault


@case("pageable-to-device", "host", "host.pageable-copy")
def pageable_to_device(run):
    torch = run.torch()
    x = torch.ones(PIECE, dtype=torch.uint8, device="cuda")
    pieces = [torch.ones(PIECE, dtype=torch.uint8) for _ in range(8)]

    def fault(note):
        until = now() + run.length(8)
        while now() < until:
            for piece in pieces:
                start = now()
                x.copy_(piece)
                note.add(start, now())

    yield fault


@case("pinned", "host", "host.pageable-copy", ONLY)
def pinned(run):
    torch = run.torch()
    x = torch.ones(PIECE, dtype=torch.uint8, device="cuda")
    piece = torch.ones(PIECE, dtype=torch.uint8).pin_memory()

    def fault(note):
        start = now()
        for _ in range(10):
            x.copy_(piece, non_blocking=True)
        note.add(start, now())

    yield fault


@case("alloc", "host", "host.cuda-memory")
def alloc(run):
    """cuMemAlloc and cuMemFree."""

    def fault(note):
        until = now() + run.length(5)
        start = now()
        while now() < until:
            run.gpu.cu.cuMemFree_v2(run.gpu.cu.made("cuMemAlloc_v2", 64 << 20, kind=ctypes.c_uint64))
        note.add(start, now())

    yield fault


@case("empty-cache", "host", "host.cuda-memory")
def empty_cache(run):
    """PyTorch's allocator gives memory back, and takes it again."""
    torch = run.torch()

    def fault(note):
        until = now() + run.length(5)
        start = now()
        while now() < until:
            x = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()
        note.add(start, now())

    yield fault


@case("cached-alloc", "host", "host.cuda-memory", ONLY)
def cached_alloc(run):
    torch = run.torch()
    torch.empty(8 << 20, dtype=torch.uint8, device="cuda")

    def fault(note):
        until = now() + run.length(5)
        start = now()
        while now() < until:
            torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
        note.add(start, now())

    yield fault


@case("small-kernels", "host", "host.launch-bound", besides=LATENCY)
def small_kernels(run):
    x = run.torch().ones(256, device="cuda")

    def fault(note):
        start = now()
        for _ in range(400):
            x.add_(1.0)
        note.add(start, now())
        run.gpu.synchronize()

    yield fault


@case("graph", "host", "host.launch-bound", ONLY)
def graph(run):
    """The same kernels as a graph."""
    torch = run.torch()
    x, made = torch.ones(256, device="cuda"), torch.cuda.CUDAGraph()
    x.add_(1.0)
    with torch.cuda.graph(made):
        for _ in range(400):
            x.add_(1.0)

    def fault(note):
        start = now()
        made.replay()
        note.add(start, now())

    yield fault


@case("stream-create", "host", "host.cuda-api")
def stream_create(run):
    def fault(note):
        start = now()
        streams = [run.gpu.cu.made("cuStreamCreate", 1) for _ in range(32)]
        note.add(start, now())
        for stream in streams:
            run.gpu.cu.cuStreamDestroy_v2(stream)

    yield fault


@case("module", "host", "host.module-load")
def module(run):
    """cuModuleLoadData: a kernel is compiled for the device."""
    number = 0

    def fault(note):
        nonlocal number
        number += 1
        # Another one each time, or the driver takes it from its cache.
        image = PTX + b"// %d %d\n" % (os.getpid(), number)
        start = now()
        run.gpu.cu.cuModuleUnload(run.gpu.cu.made("cuModuleLoadData", image))
        note.add(start, now())

    yield fault


@case("lazy", "host", "host.module-load")
def lazy(run):
    """The first launches of kernels that PyTorch has not used before, each followed by a second one outside of the truth."""
    torch = run.torch()
    # None that PyTorch compiles at run time: that is its own work first.
    names = ("acos acosh asin asinh atan atanh cos cosh erf erfc expm1 log10 log1p log2 rad2deg reciprocal rsqrt sigmoid sin sinh tan logit sqrt tanh "
             "ceil floor frac round trunc").split()
    kinds = [torch.float64, torch.float32]
    values = {kind: torch.full((256,), 0.5, dtype=kind, device="cuda") for kind in kinds}
    todo = [(getattr(torch, name), values[kind]) for kind in kinds for name in names if hasattr(torch, name)]

    def fault(note):
        if not todo:
            return
        function, x = todo.pop()
        start = now()
        function(x)
        note.add(start, now())

    yield fault


@case("instantiate", "host", "host.module-load")
def instantiate(run):
    """A graph of 1,000 kernels is instantiated again."""
    torch = run.torch()
    x = torch.ones(256, device="cuda")
    try:
        made = torch.cuda.CUDAGraph(keep_graph=True)
    except TypeError as error:
        raise Skip("this PyTorch cannot keep graphs") from error
    x.add_(1.0)
    with torch.cuda.graph(made):
        for _ in range(1000):
            x.add_(1.0)
    made.instantiate()

    def fault(note):
        start = now()
        made.instantiate()
        note.add(start, now())

    yield fault


# The dispatcher's own work


def detokenize(ns):
    """Turns tokens into text, in Python, as incremental detokenisers do."""
    pieces = ["▁%x" % (n * 2654435761 % 4294967296) for n in range(64)]
    text, until, at = [], now() + ns, 0
    while now() < until:
        for token in range(at, at + 100):
            piece = pieces[token * 7919 % 64]
            if piece.startswith("▁"):
                text.append(" " + piece[1:])
        at += 100
    return "".join(text)


@case("compute", "host", "host.compute", AHEAD)
def compute(run):
    def fault(note):
        clocks = Clocks()
        detokenize(run.length(10))
        note.add(*clocks.ran())

    yield fault


@case("unpickle", "host", "host.compute", AHEAD)
def unpickle(run):
    """A batch is unpickled on the dispatcher: no pin thread does it."""
    batch = pickle.dumps([(number, bytes(64 << 10), {"label": number}) for number in range(320)], 4)

    def fault(note):
        clocks = Clocks()
        pickle.loads(batch)
        note.add(*clocks.ran())

    yield fault


def heap(ms):
    """So many live objects that a collection takes that long at least."""
    objects, times = [], [0]
    # The shortest of some: the thread may lose its CPU meanwhile.
    while min(times) < ms * MS:
        objects += [{"number": n, "tokens": [n]} for n in range(20000)]
        times = []
        for _ in range(3):
            start = now()
            gc.collect()
            times.append(now() - start)
    return objects


@case("gc", "host", "host.gc", AHEAD)
def collect(run):
    live = heap(15)

    def fault(note):
        clocks = Clocks()
        gc.collect()
        note.add(*clocks.ran())

    yield fault
    del live


@case("gc-frozen", "frozen", "host.gc", ONLY)
def collect_frozen(run):
    """What lives is frozen after the warm-up: a collection takes no time. In a process of its own, or others' heaps were
    frozen as well."""
    live = heap(15)
    gc.freeze()

    def fault(note):
        clocks = Clocks()
        gc.collect()
        note.add(*clocks.ran())

    yield fault
    gc.unfreeze()
    del live


class Hog:
    """A thread that works when it is told to."""

    def __init__(self, work):
        self.go, self.busy, self.work = threading.Semaphore(0), False, work
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        set_name("hog")
        while True:
            self.go.acquire()
            self.work()
            self.busy = False

    def start(self):
        self.busy = True
        self.go.release()


def interpreter_lock(run, work):
    """Somebody else has it: the dispatcher computes little, and mostly waits for it."""
    hog, file = Hog(work), os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)

    def fault(note):
        clocks = Clocks()
        hog.start()
        while hog.busy:
            # Gives the lock away, as every call that may block does.
            os.read(file, 1)
        note.add(*clocks.waited())

    return fault


@case("gil-c", "host", "host.gil", AHEAD)
def gil_c(run):
    """One C call that never lets go."""
    number = 3**60_000

    def work():
        end = now() + 10 * MS
        while now() < end:
            number * number

    yield interpreter_lock(run, work)


@case("gil-pickle", "host", "host.gil", AHEAD)
def gil_pickle(run):
    """A checkpoint is pickled in a thread."""
    state = [{"name": f"layer.{n}", "shape": [n, n]} for n in range(20_000)]
    yield interpreter_lock(run, lambda: pickle.dumps(state))


@case("gil-python", "host", "host.gil", AHEAD)
def gil_python(run):
    """Python in a thread, which has to give the lock away every 5 ms."""
    yield interpreter_lock(run, lambda: detokenize(10 * MS))


@case("lock-python", "host", "host.lock", AHEAD)
def lock_python(run):
    """A threading.Lock whose holder compresses, without the interpreter lock."""
    lock, data, held = threading.Lock(), os.urandom(400 << 10), threading.Event()

    def work():
        with lock:
            held.set()
            zlib.compress(data)

    hog = Hog(work)

    def fault(note):
        held.clear()
        hog.start()
        held.wait()
        clocks = Clocks()
        with lock:
            pass
        note.add(*clocks.waited())

    yield fault


@case("lock-mutex", "host", "host.lock", AHEAD)
def lock_mutex(run):
    """A pthread mutex whose holder computes."""

    def fault(note):
        span = Span()
        if run.lib.lock_wait(run.length(8), span) == 0:
            note.add(span.start, span.end)

    yield fault


@case("kernel-lock", "slow", "host.kernel-lock")
def kernel_lock(run):
    """A page is mapped while another thread unmaps 512 MB."""

    def fault(note):
        span = Span()
        if run.lib.lock_kernel_prepare(512 << 20) == 0 and run.lib.lock_kernel_wait(span) == 0:
            note.add(span.start, span.end)

    yield fault


@case("sleep", "host", "host.sleep", AHEAD)
def sleep(run):
    def fault(note):
        clocks = Clocks()
        time.sleep(run.length(8) / 1e9)
        note.add(*clocks.waited())

    yield fault


@case("poll", "host", "host.sleep", AHEAD)
def poll(run):
    """Work is looked for every 3 ms."""

    def fault(note):
        until = now() + run.length(9)
        while now() < until:
            clocks = Clocks()
            select.select([], [], [], 0.003)
            note.add(*clocks.waited())

    yield fault


@case("yield", "host", "host.spin", AHEAD)
def spin_and_yield(run):
    def fault(note):
        clocks = Clocks()
        run.lib.yield_until(clocks.at + run.length(5))
        note.add(*clocks.ran())

    yield fault


def run_program(command):
    def fault(note):
        clocks = Clocks()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        # The rest is Python, at work on its side of it.
        note.add(*clocks.waited())

    return fault


@case("true", "host", "host.subprocess", AHEAD)
def subprocess_true(run):
    yield run_program(["true"])


@case("nvidia-smi", "slow", "host.subprocess")
def nvidia_smi(run):
    """As some loggers do each step."""
    fault = run_program(["nvidia-smi", "-L"])
    start = now()
    try:
        fault(Note(CASES["nvidia-smi"]))
    except (OSError, subprocess.SubprocessError) as error:
        raise Skip(f"nvidia-smi: {error}") from error
    if now() - start > 400 * MS:
        raise Skip(f"nvidia-smi takes {(now() - start) / MS:.0f} ms")
    yield fault


@case("fork", "slow", "host.subprocess")
def fork(run):
    """A big process forks and waits for its child."""
    pages = mmap.mmap(-1, 512 << 20)
    for at in range(0, len(pages), 4096):
        pages[at] = 1

    def fault(note):
        clocks = Clocks()
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        note.add(*clocks.ran())

    yield fault
    pages.close()


@case("mixed", "host", "host.compute", AHEAD)
def mixed(run):
    """Two faults in one gap: it has both causes."""

    def fault(note):
        clocks = Clocks()
        detokenize(run.length(5))
        note.add(*clocks.ran())
        clocks = Clocks()
        time.sleep(run.length(5) / 1e9)
        note.add(*clocks.waited(), cause="host.sleep")

    yield fault


# Disk


@case("disk-read", "host", "host.disk-read", AHEAD)
def disk_read(run):
    file = run.file(32 << 20)
    need_cold(file)

    def fault(note):
        evict(file)
        until, at = now() + run.length(8), 0
        while now() < until and at < 32 << 20:
            clocks = Clocks()
            os.pread(file, 1 << 20, at)
            note.add(*clocks.waited())
            at += 1 << 20

    yield fault
    os.close(file)


@case("page-fault", "host", "host.page-fault", AHEAD)
def page_fault(run):
    """Touches a cold mapped file, as lazily mapped checkpoints do."""
    size = 64 << 20
    file = run.file(size)
    need_cold(file)
    pages = list(range(0, size, 256 << 10))

    def fault(note):
        evict(file)
        with mmap.mmap(file, size, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            run.rng.shuffle(pages)
            until = now() + run.length(8)
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
            clocks = Clocks()
            for at in pages:
                mapped[at]
                if now() >= until:
                    break
            span = clocks.waited()
            if resource.getrusage(resource.RUSAGE_THREAD).ru_majflt > before:
                note.add(*span)

    yield fault
    os.close(file)


@case("fsync", "host", "host.disk-write", AHEAD)
def fsync(run):
    """A log that must be on the disk."""
    file, data = run.file(1 << 20), os.urandom(1 << 20)

    def fault(note):
        os.pwrite(file, data, 0)
        clocks = Clocks()
        os.fsync(file)
        note.add(*clocks.waited())

    yield fault
    os.close(file)


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


# The device


@case("host-callback", "host", "gpu.host-callback")
def host_callback(run):
    """A function of the host between two kernels."""

    class Callback(ctypes.Structure):
        _fields_ = [("ns", ctypes.c_uint64), ("start", ctypes.c_uint64), ("end", ctypes.c_uint64)]

    function = ctypes.cast(run.lib.host_function, ctypes.c_void_p)

    def fault(note):
        callback = Callback(run.length(5))
        run.gpu.spin(200 * US)
        run.gpu.cu.cuLaunchHostFunc(run.gpu.stream, function, ctypes.byref(callback))
        run.gpu.spin(200 * US)
        # Before, the device would have had nothing to do anyway.
        queued = now()
        run.gpu.synchronize()
        note.add(max(queued, callback.start), callback.end)

    yield fault


@case("prefetch", "managed", "gpu.unified-memory", besides=LATENCY)
def prefetch(run):
    """Managed memory moves to the device before a kernel."""
    size = 32 << 20
    memory = run.gpu.cu.made("cuMemAllocManaged", size, 1, kind=ctypes.c_uint64)  # CU_MEM_ATTACH_GLOBAL

    def fault(note):
        ctypes.memset(memory.value, 1, size)
        run.gpu.cu.cuMemPrefetchAsync(memory, size, 0, run.gpu.stream)
        run.gpu.spin(200 * US)
        queued = now()
        run.gpu.synchronize()
        note.add(queued, now())

    yield fault
    run.gpu.cu.cuMemFree_v2(memory)


@case("neighbour", "shared", "gpu.other-process", besides=LATENCY)
def neighbour(run):
    """Another process keeps the device busy: scenarios.py starts it."""

    def fault(note):
        run.gpu.spin(100 * US)
        queued = now()
        run.gpu.synchronize()
        note.add(queued, now())

    yield fault


@case("event-wait", "devices", "gpu.dependency", besides=LATENCY)
def event_wait(run):
    """The stream waits for a kernel of another device."""
    torch = run.torch()
    if run.gpu.devices < 2:
        raise Skip("one device: what it waits for keeps it busy")
    other, done = torch.cuda.Stream(device=1), torch.cuda.Event()
    with torch.cuda.device(1), torch.cuda.stream(other):
        torch.cuda._sleep(1000)
        torch.cuda.synchronize(1)

    def fault(note):
        with torch.cuda.device(1), torch.cuda.stream(other):
            run.gpu.spin(10 * MS)
            done.record(other)
        torch.cuda.current_stream().wait_event(done)
        run.gpu.spin(200 * US)
        queued = now()
        done.synchronize()
        note.add(queued, now())
        run.gpu.synchronize()

    yield fault


@case("busy-event-wait", "host", "gpu.dependency", ONLY)
def busy_event_wait(run):
    """A stream waits for a kernel of the same device: it is busy."""
    torch = run.torch()
    other, done = torch.cuda.Stream(), torch.cuda.Event()

    def fault(note):
        start = now()
        with torch.cuda.stream(other):
            run.gpu.spin(5 * MS)
            done.record(other)
        torch.cuda.current_stream().wait_event(done)
        run.gpu.spin(20 * MS)
        done.synchronize()
        note.add(start, now())

    yield fault


@case("busy-copy", "host", "gpu.copy-engine", ONLY)
def busy_copy(run):
    """A small copy behind a large one of the same direction: the device is busy."""
    torch = run.torch()
    large = torch.ones(128 << 20, dtype=torch.uint8).pin_memory()
    small = torch.ones(1 << 10, dtype=torch.uint8).pin_memory()
    there, here, other = torch.empty_like(large, device="cuda"), torch.empty_like(small, device="cuda"), torch.cuda.Stream()
    done = torch.cuda.Event()

    def fault(note):
        start = now()
        with torch.cuda.stream(other):
            there.copy_(large, non_blocking=True)
        here.copy_(small, non_blocking=True)
        done.record()
        run.gpu.spin(20 * MS)
        done.synchronize()
        note.add(start, now())

    yield fault


@case("busy-kernel", "host", "host.sync", ONLY)
def busy_kernel(run):
    """The host waits for a long kernel: the device is busy."""

    def fault(note):
        event = run.gpu.event()
        start = now()
        run.gpu.spin(10 * MS)
        run.gpu.record(event)
        run.gpu.spin(20 * MS)
        run.gpu.wait(event)
        note.add(start, now())

    yield fault


@case("busy-queue", "queue", "host.launch-bound", ONLY)
def busy_queue(run):
    """The queue is full, and a launch waits for room: the device is busy. Alone, for what is queued would hide others."""

    def fault(note):
        start = now()
        for _ in range(1500):
            run.gpu.spin(20 * US)
        note.add(start, now())

    yield fault


# The program


def serve(kind, arguments):
    """A helper: a line of numbers for a line of numbers."""
    follow_parent()
    set_name(kind)
    if kind == "tcp":
        with socket.create_server((arguments[0], 0)) as listener:
            print(0, flush=True)
            print(listener.getsockname()[1], flush=True)
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    time.sleep(int(line) / 1e9)
                    connection.sendall(b"done\n")
        return
    print(0, flush=True)
    for line in sys.stdin:
        ns, start = int(line), now()
        if kind == "compute":
            detokenize(ns)
        elif kind == "stopper":
            time.sleep(0.001)
            os.kill(int(arguments[0]), signal.SIGSTOP)
            time.sleep(ns / 1e9)
            os.kill(int(arguments[0]), signal.SIGCONT)
        print(start, now(), flush=True)


def be_engine(fifo, truth, gaps):
    """Hands out steps; sometimes it collects garbage or detokenises before the next one. Outside of what is recorded."""
    follow_parent()
    set_name("engine")
    live = heap(20)
    pauses = {"engine-gc": ("host.gc", gc.collect), "engine-compute": ("host.compute", lambda: detokenize(8 * MS))}
    notes = {name: Note(Case(None, name, "engine", cause, None, [])) for name, (cause, _) in pauses.items()}
    turns = [name for name in pauses for _ in range(gaps)]
    random.Random(1).shuffle(turns)
    with open(fifo, "wb", buffering=0) as work:
        for step, name in enumerate([None] * 20 + turns):
            for _ in range(3):
                work.write(b".")
                time.sleep(0.002)
            if name:
                notes[name].step = step
                clocks = Clocks()
                pauses[name][1]()
                notes[name].add(*clocks.ran())
        work.write(b".")
    write_truth(notes.values(), truth)
    del live


def be_neighbour(ready):
    """Keeps the device busy with short kernels, by the driver alone."""
    follow_parent()
    set_name("neighbour")
    gpu = DriverGpu()
    events = [gpu.event() for _ in range(4)]
    for step in range(1 << 30):
        if step >= len(events):
            gpu.wait(events[step % len(events)])
        if step == len(events):
            open(ready, "w").close()
        gpu.spin(1 * MS)
        gpu.record(events[step % len(events)])


def inject(run, chosen):
    """Runs the cases; returns notes and what became of each case."""
    notes, fates, ready = [], {}, []
    for one in chosen:
        note = Note(one)
        notes.append(note)
        try:
            if one.function.__code__.co_argcount == 2:
                one.function(run, note)
                fates[one.name] = "ran"
                continue
            life = one.function(run)
            ready.append((one, note, life, next(life)))
            fates[one.name] = "ran"
        except Skip as why:
            fates[one.name] = f"skipped: {why}"
        except Exception as error:
            traceback.print_exc()
            fates[one.name] = f"failed: {error!r}"
    if not ready:
        return notes, fates
    steps = Steps(run.gpu, run.twin, run.rng)
    turns = [r for r in ready for _ in range(run.gaps)]
    run.rng.shuffle(turns)
    for _ in range(5):
        steps()
    for number, (one, note, _, fault) in enumerate(turns):
        steps()
        steps()
        steps.fill()
        if fates[one.name] != "ran":
            continue
        note.step = number
        try:
            fault(note)
        except Exception as error:
            traceback.print_exc()
            fates[one.name] = f"failed: {error!r}"
    # So that the last fault ends with a launch, as all do.
    steps()
    run.gpu.synchronize()
    for _, _, life, _ in ready:
        next(life, None)
    return notes, fates


def arguments():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("groups", nargs="?", default="")
    args.add_argument("--list", action="store_true")
    args.add_argument("--lib")
    args.add_argument("--truth")
    args.add_argument("--gaps", type=int, default=32)
    args.add_argument("--twin", action="store_true")
    args.add_argument("--only", default="", help="cases")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--limit", type=int, default=0, metavar="SECONDS", help="ends by a signal then, whatever it does")
    args.add_argument("--scratch", default="/var/tmp", help="folder on a disk")
    args.add_argument("--cgroup", help="folder of a cgroup (v2) that this program moves to")
    args.add_argument("--gang", help="file shared with --be-hog")
    args.add_argument("--fifo", help="where an engine writes")
    args.add_argument("--port", help="file to write the server's port to")
    args.add_argument("--peer", type=lambda text: (text.split(":")[0], int(text.split(":")[1])), help="address of a far helper")
    args.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    for name in ("be-hog", "be-engine", "be-neighbour"):
        args.add_argument("--" + name, metavar="FILE", help=argparse.SUPPRESS)
    return args.parse_args()


def main():
    args = arguments()
    if args.list:
        for one in CASES.values():
            print(json.dumps({"case": one.name, "group": one.group, "cause": one.cause, "twin": one.twin}))
        return
    if args.serve:
        return serve(args.serve[0], args.serve[1:])
    if args.be_engine:
        return be_engine(args.be_engine, args.truth, args.gaps)
    if args.be_neighbour:
        return be_neighbour(args.be_neighbour)
    signal.alarm(args.limit)
    lib = load_library(args.lib)
    if args.be_hog:
        follow_parent()
        return lib.hog_serve(lib.gang_map(args.be_hog.encode()))
    if args.cgroup:
        with open(args.cgroup + "/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    groups, only = args.groups.split(","), set(filter(None, args.only.split(",")))
    kinds = (AHEAD, OWN, ONLY) if args.twin else (AHEAD, OWN, None)
    chosen = [c for c in CASES.values() if c.group in groups and c.twin in kinds and (not only or c.name in only)]
    run = Run(TorchGpu() if args.driver == "torch" else DriverGpu(), lib, args)
    notes, fates = inject(run, chosen)
    write_truth(notes, args.truth)
    print(json.dumps({"cases": fates, "pid": os.getpid()}), flush=True)


if __name__ == "__main__":
    main()
