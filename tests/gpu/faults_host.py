"""Faults of the dispatcher itself: what it does, and what it waits for."""

import gc
import mmap
import os
import pickle
import resource
import select
import subprocess
import threading
import time
import zlib

from faultlib import AHEAD, CASES, MS, ONLY, Clocks, Note, Skip, Span, case, evict, need_cold, now, set_name


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
    pages = mmap.mmap(-1, 1 << 30)
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
