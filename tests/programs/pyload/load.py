"""What the cases of pyload share: how a fault is noted, the steps between faults, and the list of cases.

A case is a function that takes a Run. Mostly it is a generator: it sets up, yields the fault, a function that is
called on an idle device with the Truth to fill in, and tears down when it is resumed. A plain function drives all of
its steps itself.
"""

import ctypes
import gc
import inspect
import json
import os
import random
import tempfile
import threading
import time
from typing import NamedTuple

from gpu import NOT_READY, Gpu

US = 1000
MS = 1000 * US

now = time.monotonic_ns

# A collection that is not a fault would be wrong in every truth. Those that are faults are asked for.
gc.disable()

# Twins. The device has its steps queued ahead; the case may move its fault elsewhere, too:
AHEAD = "ahead"
# The case itself makes the same calls, and the device is never idle:
BUSY = "busy"
# The case leaves out what makes the calls slow, but not the calls:
QUICK = "quick"

CASES = {}


class Case(NamedTuple):
    function: object
    name: str
    cause: str
    twin: object  # one of the above, or None
    outside: bool  # needs `pyload.py --outside`
    env: dict  # what the simulated GPU must be told
    besides: list  # causes that are as true, and not told apart by the truth

    def line(self):
        """Of --list."""
        return {
            "case": self.name,
            "cause": self.cause,
            "twin": self.twin is not None,
            "twin_idle": self.twin == QUICK,
            "device": self.cause.startswith("gpu."),
            "outside": self.outside,
            "env": self.env,
            "besides": self.besides,
            "about": " ".join(inspect.getdoc(self.function).split()),
        }


def case(name, cause, twin=None, outside=False, env=None, besides=()):
    """Registers a case."""

    def register(function):
        assert name not in CASES, name
        CASES[name] = Case(function, name, cause, twin, outside, env or {}, list(besides))
        return function

    return register


class Clocks:
    """The clocks of the calling thread: what it did since then."""

    _own = threading.local()

    def __init__(self):
        self.queued = self._queued()
        self.cpu = time.thread_time_ns()
        self.at = now()

    @classmethod
    def _queued(cls):
        """How long the thread has been runnable without a CPU. 0 for all where the kernel does not say."""
        me = (os.getpid(), threading.get_native_id())
        if getattr(cls._own, "of", None) != me:
            cls._own.of = me
            try:
                cls._own.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                cls._own.file = None
        if cls._own.file is None:
            return 0
        return int(os.pread(cls._own.file, 64, 0).split()[1])

    def ran(self):
        """A span of which all is the fault."""
        end = now()
        return Span(self.at, end, end - self.at, self._queued() - self.queued)

    def waited(self):
        """A span in which the thread slept, but also computed: where in it is not known, but how long is."""
        end = now()
        cpu = time.thread_time_ns() - self.cpu
        return Span(self.at, end, max(end - self.at - cpu, 0), self._queued() - self.queued)


class Span(NamedTuple):
    """When a fault was in effect: for `ns` of that time. For `queued` of it, its thread was runnable and got no CPU: who
    took that is not known here."""

    start: int
    end: int
    ns: int
    queued: int

    @classmethod
    def whole(cls, start, end):
        return cls(start, end, end - start, 0)

    def within(self, start, end):
        """What of it is in that time, with as much effect as it can have had. None of it: without effect."""
        first, last = max(self.start, start), min(self.end, end)
        return Span(first, last, min(self.ns, last - first), self.queued)


class Truth:
    """The faults of a case, as they happened. Written when it is over: writing is work of its own."""

    def __init__(self, case):
        self.case = case
        self.step = 0
        self.lines = []

    def add(self, span, cause=None):
        """A span without effect is none."""
        if span.ns <= 0 or span.end <= span.start:
            return
        line = {"case": self.case.name, "cause": cause or self.case.cause, "step": self.step}
        line.update(start_ns=span.start, end_ns=span.end, ns=span.ns, queued_ns=span.queued)
        self.lines.append(line)

    def add_within(self, spans, start, end, cause=None):
        """Those parts of a helper's spans that somebody waited for; they may have come as lists."""
        for span in spans:
            self.add(Span(*span).within(start, end), cause)


class Steps:
    """Launches steps on a device, and waits for each; or keeps `ahead` of them queued instead."""

    KERNELS = 5
    AHEAD = 30

    def __init__(self, gpu, ahead, rng):
        self.gpu = gpu
        self.rng = rng
        self.count = 0
        self.done = [gpu.event() for _ in range(self.AHEAD)] if ahead else None

    def __call__(self):
        """Returns whether as much is queued as is to be."""
        # 240 ms of work outlast a fault, even one that has to wait for a CPU.
        ns = 1600 * US if self.done else self.rng.choice((200, 300, 400, 500, 600, 700, 800)) * US
        for _ in range(self.KERNELS):
            self.gpu.spin(ns)
        full = True
        if self.done:
            event = self.done[self.count % self.AHEAD]
            if self.count >= self.AHEAD:
                full = self.gpu.cu.cuEventQuery(event) == NOT_READY
                self.gpu.cu.cuEventSynchronize(event)
            self.gpu.cu.cuEventRecord(event, self.gpu.stream)
        else:
            self.gpu.synchronize()
        self.count += 1
        return full

    def fill(self):
        """Queues what is to be ahead, before the first fault."""
        while self.done and self.count < self.AHEAD:
            self()


def to_next_fault(step):
    """Runs the steps between two faults: two, or as many as fill the queue again."""
    step()
    while not step():
        pass


class Run:
    """What a case is given: which one it is, and how it is to run."""

    def __init__(self, case, gaps, twin, rng, scratch):
        self.case = case
        self.gaps = gaps
        self.twin = twin
        self.ahead = twin and case.twin == AHEAD
        self.rng = rng
        self.scratch = scratch
        self._gpu = None

    @property
    def gpu(self):
        # Late: a case may leave it to its workers, or fork some before.
        if self._gpu is None:
            self._gpu = Gpu()
        return self._gpu

    def length(self, ms):
        """About so long, in ns."""
        return int(ms * MS * self.rng.uniform(0.8, 1.2))

    def file(self, size):
        """A descriptor of a new file on a disk, without a name, written and flushed."""
        if _in_memory(self.scratch):
            raise SystemExit("pyload: %s is in memory, --scratch must be on a disk" % self.scratch)
        fd, path = tempfile.mkstemp(prefix="pyload.", dir=self.scratch)
        os.unlink(path)
        piece = os.urandom(1 << 20)
        for at in range(0, size, len(piece)):
            os.pwrite(fd, piece[: size - at], at)
        os.fsync(fd)
        return fd

    def __call__(self):
        """Runs the case; returns its truth."""
        truth = Truth(self.case)
        if not inspect.isgeneratorfunction(self.case.function):
            self.case.function(self, truth)
            return truth
        life = self.case.function(self)
        fault = next(life)
        steps = Steps(self.gpu, self.ahead, self.rng)
        steps.fill()
        for truth.step in range(self.gaps):
            to_next_fault(steps)
            fault(truth)
        # So that the last fault ends with a launch, as all do.
        steps()
        self.gpu.synchronize()
        for _ in life:
            raise AssertionError("a case yields once")
        return truth


def _in_memory(path):
    """Whether a file system has no disk, by the type of its mount."""
    best = ("", "")
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, point, kind = line.split()[:3]
            inside = os.path.join(os.path.realpath(path), "").startswith(os.path.join(point, ""))
            if inside and len(point) >= len(best[0]):
                best = (point, kind)
    return best[1] in ("tmpfs", "ramfs")


LIBC = ctypes.CDLL(None)


def keep_away(tid):
    """Keeps a thread from the CPU of the calling one, which it would preempt when it is woken: whoever is about to wait
    does not wait yet then, but wants a CPU."""
    cpus = os.sched_getaffinity(0) - {LIBC.sched_getcpu()}
    if cpus:
        os.sched_setaffinity(tid, cpus)


def set_name(name):
    """Of the calling thread, as other programs see it."""
    LIBC.prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME


def follow_parent():
    """A helper ends with the program, however that ends."""
    LIBC.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL


def generator(seed, name):
    """Random numbers of a case: the same whatever runs before it."""
    return random.Random("%d %s" % (seed, name))


def write(truth, file):
    for line in truth.lines:
        file.write(json.dumps(line) + "\n")
    file.flush()
