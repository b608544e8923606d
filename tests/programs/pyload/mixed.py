"""Two faults in one gap. The truth says which was when."""

import os
import time

from load import AHEAD, Clocks, case, keep_away
from loaders import Batches, Images, Loader
from on_disk import ColdFile
from work import Detokenizer, heap_collector


@case("sleep-gc", "host.gc", AHEAD)
def sleep_gc(run):
    """A pause, then a collection."""
    collect = heap_collector()

    def fault(truth):
        clocks = Clocks()
        time.sleep(run.length(6) / 1e9)
        truth.add(clocks.waited(), "host.sleep")
        truth.add(collect())

    yield fault


@case("loader-fsync", "host.data-loading", AHEAD)
def loader_fsync(run):
    """A batch that is late, then records that are flushed to the disk."""
    log = run.file(0)
    record = bytes(256 << 10)
    with Loader(Images()) as loader:
        # The next one is decoded during the flushes, and still has to be late.
        batch = Batches(run, loader.ask, loader.take, ms=32)

        def fault(truth):
            batch(truth)
            keep_away(loader.workers[0].pid)
            for _ in range(3):
                os.write(log, record)
                clocks = Clocks()
                os.fsync(log)
                truth.add(clocks.waited(), "host.disk-write")

        yield fault
        batch.finish()
    os.close(log)


@case("read-compute", "host.disk-read", AHEAD)
def read_compute(run):
    """A cold prompt is read, then tokenised."""
    detokenizer = Detokenizer()
    with ColdFile(run) as file:

        def fault(truth):
            for span in file.read(run.length(8)):
                truth.add(span)
            truth.add(detokenizer.detokenize(run.length(8)), "host.compute")

        yield fault
