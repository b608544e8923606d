"""What the host is busy with: garbage, tokens, images. Pure Python, as long as it is not said otherwise."""

import gc
import time
import zlib

from load import Clocks, MS, now


class Heap:
    """So many live objects that one collection takes a CPU for at least `ms`."""

    def __init__(self, ms):
        self.requests = []
        while min(self._collect() for _ in range(3)) < ms * MS:
            self.requests.extend(Request(len(self.requests)) for _ in range(20000))

    @staticmethod
    def _collect():
        start = time.thread_time_ns()
        gc.collect()
        return time.thread_time_ns() - start


class Request:
    """What a server keeps of a request: some containers."""

    def __init__(self, number):
        self.tokens = [number]
        self.block = {"number": number, "owner": self}


def heap_collector():
    """A function that collects a big heap, and returns the span of it."""
    heap = Heap(24)

    def collect():
        clocks = Clocks()
        gc.collect()
        span = clocks.ran()
        # Here, so that it lives.
        assert heap.requests is not None
        return span

    return collect


class Automatic:
    """A big heap, and garbage made until the interpreter itself collects it."""

    def __init__(self):
        self.heap = Heap(24)
        self.kept = []
        self.start = self.span = None
        self.usual = gc.get_threshold()
        gc.callbacks.append(self._called)

    def close(self):
        gc.callbacks.remove(self._called)
        gc.set_threshold(*self.usual)

    def _called(self, phase, info):
        if info["generation"] < 2:
            return
        if phase == "start":
            self.start = Clocks()
        else:
            self.span = self.start.ran()

    def provoke(self):
        """Allocates until there was a full collection; returns its span. Such a one comes only when a quarter of the
        heap is new: so all of it is made to be."""
        self.kept.clear()
        gc.freeze()
        gc.collect()
        gc.unfreeze()
        self.span = None
        gc.set_threshold(700, 1, 1)
        gc.enable()
        while self.span is None:
            self.kept.append([self.kept])
        gc.disable()
        return self.span


class Detokenizer:
    """Turns tokens into text, in Python, as incremental detokenisers do."""

    def __init__(self):
        self.pieces = ["▁%x" % (n * 2654435761 % 4294967296) for n in range(4096)]

    def detokenize(self, ns):
        """For so long; returns its span."""
        clocks = Clocks()
        text, until, position = [], clocks.at + ns, 0
        while now() < until:
            for token in range(position, position + 100):
                piece = self.pieces[token * 7919 % 4096]
                if piece.startswith("▁"):
                    text.append(" " + piece[1:])
            position += 100
        "".join(text)
        return clocks.ran()


class Image:
    """A picture in a packed form, whose decoding takes time in zlib (without the interpreter lock) and in Python."""

    WIDTH = 512

    def __init__(self):
        rows = bytes((x * y) & 255 for y in range(64) for x in range(self.WIDTH))
        self.packed = zlib.compress(rows)

    def decode(self, ns):
        """For so long on a CPU, however long that takes: nobody waits for a loader that is done. Returns the last row
        and the span."""
        clocks = Clocks()
        pixels = bytearray(self.WIDTH)
        while time.thread_time_ns() - clocks.cpu < ns:
            rows = zlib.decompress(self.packed)
            left = 0
            for x, value in enumerate(rows[: self.WIDTH]):
                left = (left + value) & 255
                pixels[x] = left
        return pixels, clocks.ran()
