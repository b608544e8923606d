"""Faults among the threads of the dispatcher's process: the interpreter lock, a lock, a helper thread that answers."""

import hashlib
import pickle
import queue
import resource
import threading
import time

from helpers import elsewhere
from load import AHEAD, MS, Clocks, Span, case, keep_away, now
from on_disk import ColdFile
from work import Detokenizer


class Thread:
    """Runs `serve(argument)` for each one that it is given, and hands back what it returns."""

    def __init__(self, serve):
        self.given, self.done = queue.Queue(), queue.Queue()
        self.thread = threading.Thread(target=self._loop, args=(serve,), daemon=True)

    def _loop(self, serve):
        for argument in iter(self.given.get, None):
            self.done.put(serve(argument))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.given.put(None)
        self.thread.join()


def locked():
    lock = threading.Lock()
    lock.acquire()
    return lock


# The interpreter lock, held by another thread in one long call to C: it cannot be asked for the lock before the end.


def summing():
    return lambda: sum(range(1500000))


def sorting():
    numbers = [n * 7919 % 1000003 for n in range(200000)]
    return lambda: sorted(numbers)


def pickling():
    state = {n: (n, "parameter.%d" % n) for n in range(80000)}
    return lambda: pickle.dumps(state, 4)


def timed(prepare):
    """As `prepare`, but what is called returns its span."""

    def prepared():
        work = prepare()

        def call():
            clocks = Clocks()
            work()
            return clocks.ran()

        return call

    return prepared


def gil_in_c(run, prepare):
    if run.twin:
        yield from elsewhere("hog", timed(prepare))
        return
    work = prepare()

    def hold(held):
        start = now()
        held.release()
        work()
        return start

    with Thread(hold) as holder:

        def fault(truth):
            held = locked()
            keep_away(holder.thread.native_id)
            # Its clocks let the interpreter lock go, and would end up in the wait.
            clocks = Clocks()
            holder.given.put(held)
            # Woken at once, this thread then waits for the interpreter lock.
            held.acquire()
            span = clocks.ran()
            truth.add_within([span], holder.done.get(), span.end)

        yield fault


@case("gil-sum", "host.gil", AHEAD)
def gil_sum(run):
    """Another thread is in one long call to C that keeps the interpreter lock; the twin's is in another process."""
    yield from gil_in_c(run, summing)


@case("gil-sort", "host.gil", AHEAD)
def gil_sort(run):
    """Another thread sorts a long list; the twin's is in another process."""
    yield from gil_in_c(run, sorting)


@case("gil-pickle", "host.gil", AHEAD)
def gil_pickle(run):
    """A thread pickles a big checkpoint, as asynchronous savers do; the twin's is in another process."""
    yield from gil_in_c(run, pickling)


def hog(until):
    n = 0
    while now() < until:
        n += 1
    return n


@case("gil-python", "host.gil", AHEAD)
def gil_python(run):
    """Another thread runs Python for some switch intervals, and the dispatcher, too; the twin's is in another process."""
    if run.twin:
        yield from elsewhere("hog", timed(lambda: lambda: hog(now() + 40 * MS)))
        return

    with Thread(hog) as other:

        def fault(truth):
            keep_away(other.thread.native_id)
            last = now()
            until = last + run.length(40)
            other.given.put(until)
            sleeps = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            while last < until:
                at = now()
                if at - last > MS:
                    # Without a sleep it was preempted.
                    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
                    if slept > sleeps:
                        truth.add(Span.whole(last, at))
                    sleeps = slept
                last = at
            other.done.get()

        yield fault


# A lock that another thread holds. What that does meanwhile is evidence: the cause is the lock.


def lock_held(run, body):
    lock = threading.Lock()

    def hold(gates):
        holds, wanted = gates
        with lock:
            holds.release()
            wanted.acquire()
            body(run.length(8))
            return now()

    with Thread(hold) as holder:

        def fault(truth):
            holds, wanted = locked(), locked()
            keep_away(holder.thread.native_id)
            holder.given.put((holds, wanted))
            holds.acquire()
            start = now()
            wanted.release()
            with lock:
                pass
            truth.add(Span.whole(start, holder.done.get()))

        yield fault


@case("lock-sleep", "host.lock", AHEAD)
def lock_sleep(run):
    """A thread sleeps while it holds a lock that the dispatcher wants."""
    yield from lock_held(run, lambda ns: time.sleep(ns / 1e9))


@case("lock-hash", "host.lock", AHEAD)
def lock_hash(run):
    """A thread hashes, without the interpreter lock, while it holds a lock that the dispatcher wants."""
    data = bytes(1 << 20)

    def hash_for(ns):
        until = now() + ns
        while now() < until:
            hashlib.sha256(data).digest()

    yield from lock_held(run, hash_for)


@case("lock-read", "host.lock", AHEAD)
def lock_read(run):
    """A thread reads a cold file while it holds a lock that the dispatcher wants."""
    with ColdFile(run) as file:
        yield from lock_held(run, lambda ns: file.read(ns))


# A thread that answers over a queue.Queue: the wait is for what it does.


def helper_thread(run, serve):
    """`serve(ns)` returns its span."""
    with Thread(serve) as helper:

        def fault(truth):
            keep_away(helper.thread.native_id)
            start = now()
            helper.given.put(run.length(12))
            span = helper.done.get()
            truth.add_within([span], start, now())

        yield fault


@case("thread-compute", "host.compute", AHEAD)
def thread_compute(run):
    """A detokeniser on a thread of its own, awaited through a queue."""
    yield from helper_thread(run, Detokenizer().detokenize)


@case("thread-sleep", "host.sleep", AHEAD)
def thread_sleep(run):
    """A thread that sleeps before it answers through a queue."""

    def serve(ns):
        clocks = Clocks()
        time.sleep(ns / 1e9)
        return clocks.waited()

    yield from helper_thread(run, serve)
