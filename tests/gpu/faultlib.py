"""What the cases of faults.py share: truth, the steps between faults, helper processes and the C library.

A case is a function that takes a Run. Mostly it is a generator: it sets up, yields the fault, a function that is
called on an idle device with a Note to fill in, and tears down when it is resumed. A plain function takes the Note as
well and drives all of its steps itself. One that cannot be done here raises Skip.
"""

import ctypes
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

US = 1_000
MS = 1_000_000

HERE = os.path.dirname(os.path.abspath(__file__))
FAULTS = os.path.join(HERE, "faults.py")

now = time.monotonic_ns


class Skip(Exception):
    """Why a case cannot be done on this machine."""


# Twins: the device has its steps queued ahead; or the case itself makes the same calls without a gap; or the case is
# nothing but such a twin: its cause is what it must not be blamed for.
AHEAD, OWN, ONLY = "ahead", "own", "only"

CASES = {}


class Case:
    def __init__(self, function, name, group, cause, twin, besides):
        self.function, self.name, self.group, self.cause, self.twin, self.besides = function, name, group, cause, twin, besides


def case(name, group, cause, twin=None, besides=()):
    """Registers a case. `besides`: causes that are as true, and not told apart by the truth."""

    def register(function):
        assert name not in CASES, name
        CASES[name] = Case(function, name, group, cause, twin, list(besides))
        return function

    return register


class Span(ctypes.Structure):
    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64)]


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
        try:
            if not hasattr(cls._own, "file"):
                cls._own.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(cls._own.file, 64, 0).split()[1])
        except (OSError, IndexError):
            return 0

    def ran(self):
        """All of the time is the fault, but for what the thread had to wait for a CPU."""
        end = now()
        queued = self._queued() - self.queued
        return self.at, end, max(end - self.at - queued, 0), queued

    def waited(self):
        """The thread slept, but also computed: where in the time is not known, but how long is."""
        end = now()
        cpu = time.thread_time_ns() - self.cpu
        queued = self._queued() - self.queued
        return self.at, end, max(end - self.at - cpu - queued, 0), queued


class Note:
    """The faults of a case, as they happened. They are written when all is over: writing is work of its own."""

    def __init__(self, case, device=0):
        self.case, self.device = case, device
        self.step, self.lines = 0, []

    def add(self, start, end, ns=None, queued=0, cause=None):
        if end <= start:
            return
        line = {"case": self.case.name, "cause": cause or self.case.cause, "step": self.step, "start_ns": start, "end_ns": end,
                "ns": end - start if ns is None else max(ns, 0), "queued_ns": queued, "device": self.device}
        if self.case.besides:
            line["besides"] = self.case.besides
        self.lines.append(line)

    def within(self, span, start, end, cause=None):
        """What of a helper's span somebody waited for."""
        first, last = max(span[0], start), min(span[1], end)
        self.add(first, last, cause=cause)


class Steps:
    """Launches steps on a device and waits for each; or keeps AHEAD of them queued instead: 100 ms of work, more than
    any fault takes that has such a twin."""

    KERNELS, AHEAD = 5, 40

    def __init__(self, gpu, ahead, rng):
        self.gpu, self.rng, self.count = gpu, rng, 0
        self.done = [gpu.event() for _ in range(self.AHEAD)] if ahead else None

    def __call__(self):
        ns = 800 * US if self.done else self.rng.choice((200, 300, 400)) * US
        for _ in range(self.KERNELS):
            self.gpu.spin(ns)
        if self.done:
            event = self.done[self.count % self.AHEAD]
            if self.count >= self.AHEAD:
                self.gpu.wait(event)
            self.gpu.record(event)
        else:
            self.gpu.synchronize()
        self.count += 1

    def fill(self):
        """Until most of what may be queued is."""
        most = self.AHEAD - 3
        while self.done and (self.count < most or self.gpu.is_done(self.done[(self.count - most) % self.AHEAD])):
            self()


class Run:
    """What a case sees of the program."""

    def __init__(self, gpu, lib, options):
        self.gpu, self.lib, self.options = gpu, lib, options
        self.twin, self.gaps = options.twin, options.gaps
        self.rng = random.Random(options.seed)

    def length(self, ms):
        """About so long, in ns."""
        return int(ms * MS * self.rng.uniform(0.8, 1.2))

    def torch(self):
        if self.gpu.torch is None:
            raise Skip("needs torch")
        return self.gpu.torch

    def neighbour(self):
        """Another process that keeps the device busy, until it is asked for again."""
        with tempfile.TemporaryDirectory() as folder:
            ready = folder + "/ready"
            process = subprocess.Popen([sys.executable, os.path.abspath(sys.argv[0]), "--be-neighbour", ready])
            try:
                while not os.path.exists(ready) and process.poll() is None:
                    time.sleep(0.01)
                yield
                os.unlink(ready)
                process.wait(5)
            finally:
                process.kill()
                process.wait()

    def file(self, size):
        """A new file of that size, written and flushed, that has no name any more."""
        path = f"{self.options.scratch}/faults.{os.getpid()}.{self.rng.random()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        piece = os.urandom(1 << 20)
        for at in range(0, size, len(piece)):
            os.pwrite(fd, piece, at)
        os.fsync(fd)
        return fd


def evict(fd):
    """Its pages leave the page cache."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def blocks_read():
    with open("/proc/self/io") as file:
        return int(file.read().split("read_bytes:")[1].split()[0])


def need_cold(fd):
    """A file system may keep the pages, or have no disk."""
    evict(fd)
    before = blocks_read()
    os.pread(fd, 1 << 20, 0)
    if blocks_read() - before < 1 << 19:
        raise Skip("files cannot be made cold in --scratch")


def load_library(path):
    lib = ctypes.CDLL(path)
    spans = ctypes.POINTER(Span)
    lib.gang_map.restype = ctypes.c_void_p
    lib.gang_map.argtypes = [ctypes.c_char_p]
    lib.hog_serve.argtypes = [ctypes.c_void_p]
    lib.hog_threads.argtypes = [ctypes.c_void_p, ctypes.c_int]
    lib.hog_turn.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, spans, ctypes.c_int]
    lib.note_jumps.argtypes = [ctypes.c_uint64, spans, ctypes.c_int]
    lib.lock_wait.argtypes = [ctypes.c_uint64, spans]
    lib.lock_kernel_prepare.argtypes = [ctypes.c_size_t]
    lib.lock_kernel_wait.argtypes = [spans]
    lib.yield_until.argtypes = [ctypes.c_uint64]
    return lib


class Jumps:
    """Room for the times in which a thread was kept from running."""

    MOST = 256

    def __init__(self):
        self.spans = (Span * self.MOST)()

    def note(self, count, note):
        for span in self.spans[:count]:
            note.add(span.start, span.end)


class Helper:
    """A process of faults.py that serves requests, a number a line, until its end of the pipe is closed."""

    def __init__(self, kind, *arguments):
        command = [sys.executable, FAULTS, "--serve", kind, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.answer()

    def ask(self, *numbers):
        self.process.stdin.write(" ".join(map(str, numbers)) + "\n")
        self.process.stdin.flush()

    def answer(self):
        """The numbers of the answer."""
        return [int(word) for word in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def ask_by_tcp(address):
    """A connection to a peer that serves lines."""
    connection = socket.create_connection(address, timeout=10)
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def set_name(name):
    """Of the calling thread, as other programs see it."""
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)  # PR_SET_NAME


def follow_parent():
    """A helper ends with the program, however that ends."""
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL


def write_truth(notes, path):
    with open(path, "a") as file:
        for line in sorted((line for note in notes for line in note.lines), key=lambda line: line["start_ns"]):
            file.write(json.dumps(line) + "\n")


# The kernel spins for so many ns. The simulated driver takes any image and reads the first parameter.
PTX = rb"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry spin(.param .u64 ns)
{
  .reg .u64 %rd<5>;
  .reg .pred %p;
  ld.param.u64 %rd1, [ns];
  mov.u64 %rd2, %globaltimer;
AGAIN:
  mov.u64 %rd3, %globaltimer;
  sub.u64 %rd4, %rd3, %rd2;
  setp.lt.u64 %p, %rd4, %rd1;
  @%p bra AGAIN;
  ret;
}
"""


class Cuda:
    """The driver's functions by ctypes: an error is an exception."""

    def __init__(self):
        self._library = ctypes.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self._library, name)

        def call(*arguments):
            # As C passes them: the callee takes of a register what it needs.
            result = function(*(ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments))
            if result:
                raise RuntimeError(f"{name}: CUDA error {result}")

        setattr(self, name, call)
        return call

    def result(self, name, *arguments):
        """For a function whose failure is an answer."""
        return getattr(self._library, name)(*arguments)

    def made(self, name, *arguments, kind=ctypes.c_void_p):
        """What a function writes to its first argument."""
        out = kind()
        getattr(self, name)(ctypes.byref(out), *arguments)
        return out


class DriverGpu:
    """A device by the driver API alone: for processes without torch, and for the simulated GPU."""

    torch = None

    def __init__(self, device=0):
        self.cu = Cuda()
        self.cu.cuInit(0)
        self.context = self.cu.made("cuDevicePrimaryCtxRetain", device)
        self.cu.cuCtxSetCurrent(self.context)
        self.stream = self.cu.made("cuStreamCreate", 1)  # CU_STREAM_NON_BLOCKING
        module = self.cu.made("cuModuleLoadData", PTX)
        self.kernel = self.cu.made("cuModuleGetFunction", module, b"spin")
        self.devices = self.cu.made("cuDeviceGetCount", kind=ctypes.c_int).value

    def spin(self, ns):
        """Launches a kernel of about that length."""
        value = ctypes.c_uint64(ns)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        self.cu.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters, None)

    def synchronize(self):
        self.cu.cuStreamSynchronize(self.stream)

    def event(self):
        return self.cu.made("cuEventCreate", 2)  # CU_EVENT_DISABLE_TIMING

    def record(self, event):
        self.cu.cuEventRecord(event, self.stream)

    def wait(self, event):
        self.cu.cuEventSynchronize(event)

    def is_done(self, event):
        return self.cu.result("cuEventQuery", event) == 0


class TorchGpu:
    """A device by PyTorch, on its usual stream."""

    def __init__(self):
        import torch

        self.torch = torch
        self.devices = torch.cuda.device_count()
        torch.zeros(1, device="cuda")
        self.cu = Cuda()  # in the context that torch made
        self.stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self.cycles = 1.5
        for _ in range(3):  # the clock goes up under load
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            torch.cuda._sleep(40_000_000)
            last.record()
            last.synchronize()
            self.cycles = 40_000_000 / (first.elapsed_time(last) * 1e6)

    def spin(self, ns):
        self.torch.cuda._sleep(int(ns * self.cycles))

    def synchronize(self):
        self.torch.cuda.synchronize()

    def event(self):
        return self.torch.cuda.Event()

    def record(self, event):
        event.record()

    def wait(self, event):
        event.synchronize()

    def is_done(self, event):
        return event.query()
