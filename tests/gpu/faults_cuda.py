"""Faults that are CUDA calls, and faults of the device."""

import ctypes
import os

from faultlib import MS, ONLY, PTX, US, Skip, case, now

LATENCY = ["gpu.launch-latency"]


# CUDA calls


@case("item", "host", "host.sync", besides=LATENCY)
def item(run):
    """.item() after each short kernel: the gaps are the refills."""
    x = run.torch().ones(256, device="cuda")
    x[0].item()

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
    x.nonzero()

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
# PyTorch synchronises after each copy from or to pageable memory.
PIECE = 8 << 20
AFTER_COPY = ["gpu.launch-latency", "host.sync"]


@case("pageable-to-host", "host", "host.pageable-copy", besides=AFTER_COPY)
def pageable_to_host(run):
    torch = run.torch()
    x = torch.ones(PIECE, dtype=torch.uint8, device="cuda")
    x.to("cpu")

    def fault(note):
        until = now() + run.length(8)
        while now() < until:
            start = now()
            x.to("cpu")
            note.add(start, now())

    yield fault


@case("pageable-to-device", "host", "host.pageable-copy", besides=AFTER_COPY)
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
            torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
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
    # One that was destroyed would be had again for little.
    streams = []

    def fault(note):
        for _ in range(16):
            start = now()
            streams.append(run.gpu.cu.made("cuStreamCreate", 1))
            note.add(start, now())

    yield fault
    for stream in streams:
        run.gpu.cu.cuStreamDestroy_v2(stream)


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
    if run.gpu.torch:
        raise Skip("a real driver moves most of it inside of the call")
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


@case("touch", "managed", "gpu.unified-memory")
def touch(run):
    """The host reads managed memory that is on the device: each page has to come back."""
    if not run.gpu.torch:
        raise Skip("the simulated device has no pages")
    size = 32 << 20
    memory = run.gpu.cu.made("cuMemAllocManaged", size, 1, kind=ctypes.c_uint64)  # CU_MEM_ATTACH_GLOBAL
    ctypes.memset(memory.value, 1, size)

    def fault(note):
        run.gpu.cu.cuMemPrefetchAsync(memory, size, 0, run.gpu.stream)
        run.gpu.synchronize()
        start = now()
        run.lib.touch(memory, ctypes.c_uint64(size))
        note.add(start, now())

    yield fault
    run.gpu.cu.cuMemFree_v2(memory)


@case("neighbour", "shared", "gpu.other-process", besides=LATENCY)
def neighbour(run):
    """Another process of the job has kernels on the device: time goes by while it is handed over."""
    life = run.neighbour()
    next(life)

    def fault(note):
        run.gpu.spin(100 * US)
        queued = now()
        run.gpu.synchronize()
        note.add(queued, now())

    yield fault
    next(life, None)


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
