"""Faults that are CUDA calls of the dispatcher, and those of the device, for which no host is to blame.

Those of the device need what gpuload needs: two devices, as a device that waits for itself is busy, which share the
copy engines.
"""

import ctypes
import time

from gpu import HOST_FUNCTION, PTX, Gpu
from load import US, Clocks, Span, case, now

TWO_DEVICES = {"GDIAG_SIM_DEVICES": "2"}
SHARED_COPY = {"GDIAG_SIM_DEVICES": "2", "GDIAG_SIM_SHARED_COPY": "1"}

# What the driver of an H200 moves in one piece: the device is idle for most of such a copy. A larger one keeps it busy
# until just before the call returns.
PIECE = 1 << 20


@case("item", "host.sync", besides=["gpu.launch-latency"])
def item(run):
    """A number is read from the device after each small kernel, as by .item(): the gaps are the refills."""
    gpu = run.gpu
    memory = gpu.memory(PIECE)
    value = ctypes.c_int()

    def fault(truth):
        clocks = Clocks()
        until = clocks.at + run.length(12)
        while now() < until:
            gpu.spin(50 * US)
            gpu.cu.cuMemcpyDtoHAsync(ctypes.addressof(value), memory, ctypes.sizeof(value), gpu.stream)
        # Ends with the device busy, so that no other gap counts as this one.
        gpu.spin(100 * US)
        truth.add(clocks.ran())

    yield fault
    gpu.cu.cuMemFree(memory)


@case("pageable", "host.pageable-copy")
def pageable(run):
    """Results are copied to pageable memory that is new each time."""
    gpu = run.gpu
    memory = gpu.memory(PIECE)

    def fault(truth):
        until = now() + run.length(10)
        while now() < until:
            host = ctypes.create_string_buffer(PIECE)
            clocks = Clocks()
            gpu.cu.cuMemcpyDtoHAsync(ctypes.addressof(host), memory, PIECE, gpu.stream)
            truth.add(clocks.ran())

    yield fault
    gpu.cu.cuMemFree(memory)


@case("allocate", "host.cuda-memory")
def allocate(run):
    """Device memory is allocated and freed, without a cache."""
    gpu = run.gpu

    def fault(truth):
        until = now() + run.length(10)
        while now() < until:
            clocks = Clocks()
            memory = gpu.memory(64 << 20)
            truth.add(clocks.ran())
            clocks = Clocks()
            gpu.cu.cuMemFree(memory)
            truth.add(clocks.ran())

    yield fault


@case("pin", "host.cuda-memory")
def pin(run):
    """Host memory is pinned and freed each time."""
    gpu = run.gpu

    def fault(truth):
        until = now() + run.length(10)
        while now() < until:
            clocks = Clocks()
            gpu.cu.cuMemFreeHost(gpu.pinned(PIECE))
            truth.add(clocks.ran())

    yield fault


@case("module", "host.module-load")
def module(run):
    """Modules are loaded in the middle of the work."""
    gpu = run.gpu

    def fault(truth):
        until = now() + run.length(10)
        while now() < until:
            clocks = Clocks()
            loaded = gpu.cu.made(gpu.cu.cuModuleLoadData, PTX)
            truth.add(clocks.ran())
            gpu.cu.cuModuleUnload(loaded)

    yield fault


@case("launches", "host.launch-bound", besides=["gpu.launch-latency"])
def launches(run):
    """Kernels that are shorter than what Python takes to launch them, as in an eager framework."""
    gpu = run.gpu

    def dispatch(shape):
        """What comes before a launch: about 15 us."""
        strides = [1]
        for size in reversed(shape):
            strides.append(strides[-1] * size)
        return strides

    def fault(truth):
        shape = (2, 3) * 64
        clocks = Clocks()
        for _ in range(200):
            dispatch(shape)
            gpu.spin(2 * US)
        truth.add(clocks.ran())

    yield fault


@case("callback", "gpu.host-callback")
def callback(run):
    """A Python function is queued between two kernels, and sleeps."""
    gpu = run.gpu
    called = {}

    def host_function(_):
        called["start"] = now()
        time.sleep(called["ns"] / 1e9)
        called["end"] = now()

    function = HOST_FUNCTION(host_function)

    def fault(truth):
        called["ns"] = run.length(8)
        gpu.spin(200 * US)
        gpu.cu.cuLaunchHostFunc(gpu.stream, function, None)
        gpu.spin(200 * US)
        # Before, the device would have had nothing to do anyway.
        queued = now()
        gpu.synchronize()
        truth.add(Span.whole(max(queued, called["start"]), called["end"]))

    yield fault


def wait_for_other(gpu, event, start, done, truth):
    """The truth ends when the other device can first be done: this thread hears of it when it gets a CPU."""
    gpu.cu.cuEventSynchronize(event)
    truth.add(Span.whole(start, min(now(), done)))
    gpu.synchronize()


@case("dependency", "gpu.dependency", env=TWO_DEVICES)
def dependency(run):
    """A kernel waits for one on another device, as in a pipeline over several."""
    gpu, other = run.gpu, Gpu(1)
    event = other.event()
    gpu.use()

    def fault(truth):
        ns = run.length(8)
        other.use()
        start = now()
        other.spin(ns)
        gpu.cu.cuEventRecord(event, other.stream)
        gpu.use()
        gpu.cu.cuStreamWaitEvent(gpu.stream, event, 0)
        gpu.spin(200 * US)
        wait_for_other(gpu, event, now(), start + ns, truth)

    yield fault


@case("copy-engine", "gpu.copy-engine", env=SHARED_COPY)
def copy_engine(run):
    """A copy waits for copies of another device that go through the same engine."""
    gpu, other = run.gpu, Gpu(1)
    size = 16 << 20
    event, pinned, there = other.event(), other.pinned(size), other.memory(size)
    copy_ns = min(_copy_ns(other, there, pinned, size) for _ in range(8))
    gpu.use()
    here = gpu.memory(PIECE)

    def fault(truth):
        copies = run.length(8) // copy_ns + 1
        other.use()
        start = now()
        for _ in range(copies):
            gpu.cu.cuMemcpyHtoDAsync(there, pinned, size, other.stream)
        gpu.cu.cuEventRecord(event, other.stream)
        gpu.use()
        # Too long for the pauses between the other copies.
        gpu.cu.cuMemcpyHtoDAsync(here, pinned, PIECE, gpu.stream)
        # What was measured includes the start of the first copy and the news of the last one.
        wait_for_other(gpu, event, now(), start + copies * copy_ns * 19 // 20, truth)

    yield fault
    gpu.cu.cuMemFree(here)


def _copy_ns(gpu, there, pinned, size):
    start = now()
    for _ in range(4):
        gpu.cu.cuMemcpyHtoDAsync(there, pinned, size, gpu.stream)
    gpu.synchronize()
    return (now() - start) // 4 + 1
