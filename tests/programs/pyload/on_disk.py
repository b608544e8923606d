"""Faults of the dispatcher that are the disk's: cold files read and mapped, logs and checkpoints flushed."""

import json
import mmap
import os

from load import AHEAD, QUICK, Clocks, case, now

PAGE = 4096
# As samples are read: the disk takes longer than the copy.
SAMPLE = 256 << 10


class ColdFile:
    """A file that is dropped from the page cache before it is read."""

    SIZE = 64 << 20

    def __init__(self, run):
        self.fd = run.file(self.SIZE)
        self.turn = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)

    def make_cold(self):
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def scattered(self, size):
        """Far from the last one; each comes once until all have been."""
        self.turn += 1
        return self.turn * 7919 % (self.SIZE // size) * size

    def read(self, ns):
        """Reads samples until the thread has slept for so long in it, or all are read; returns the span of each."""
        self.make_cold()
        spans, slept = [], 0
        while slept < ns and len(spans) < self.SIZE // SAMPLE:
            clocks = Clocks()
            os.pread(self.fd, SAMPLE, self.scattered(SAMPLE))
            spans.append(clocks.waited())
            slept += spans[-1].ns
        return spans


@case("disk-read", "host.disk-read", AHEAD)
def disk_read(run):
    """A cold file read on the dispatcher."""
    with ColdFile(run) as file:

        def fault(truth):
            for span in file.read(run.length(10)):
                truth.add(span)

        yield fault


@case("page-fault", "host.page-fault", QUICK)
def page_fault(run):
    """A cold file, mapped and touched on the dispatcher; the twin's is warm."""
    with ColdFile(run) as file:

        def fault(truth):
            if not run.twin:
                file.make_cold()
            # Mapped pages stay in the cache, so it is mapped anew each time.
            with mmap.mmap(file.fd, file.SIZE, mmap.MAP_SHARED, mmap.PROT_READ) as mapped:
                mapped.madvise(mmap.MADV_RANDOM)
                until = now() + run.length(10)
                touching = Clocks()
                for _ in range(256):
                    at = file.scattered(PAGE)
                    clocks = Clocks()
                    mapped[at]
                    if not run.twin:
                        truth.add(clocks.waited())
                    if now() > until:
                        break
                if run.twin:
                    truth.add(touching.ran())

        yield fault


@case("fsync", "host.disk-write", QUICK)
def fsync(run):
    """A logger that flushes every record to the disk; the twin's only writes."""
    record = "loss 0.1234 " * 1000
    with os.fdopen(run.file(0), "a") as log:

        def fault(truth):
            until = now() + run.length(10)
            while now() < until:
                writing = Clocks()
                log.write("step %d %s\n" % (truth.step, record))
                log.flush()
                if run.twin:
                    truth.add(writing.ran())
                    break
                flushing = Clocks()
                os.fsync(log.fileno())
                truth.add(flushing.waited())

        yield fault


@case("checkpoint", "host.disk-write", AHEAD)
def checkpoint(run):
    """A checkpoint of 2 MB is flushed, and its description as JSON, whose encoding is host.compute."""
    state = {"parameter.%d" % n: [n / 7.0] * 8 for n in range(1000)}
    weights = os.urandom(2 << 20)
    fd = run.file(0)

    def fault(truth):
        os.ftruncate(fd, 0)
        clocks = Clocks()
        text = json.dumps(state).encode()
        truth.add(clocks.ran(), "host.compute")
        os.pwrite(fd, text + weights, 0)
        clocks = Clocks()
        os.fsync(fd)
        truth.add(clocks.waited())

    yield fault
    os.close(fd)
