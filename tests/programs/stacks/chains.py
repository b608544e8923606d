#!/usr/bin/env python3
"""Known call chains in Python: chains.py FILE [SECONDS [SEED]]; see truth.h for what it writes.

A frame of a chain is [function, qualified name, file, line], root first; the last one's line is a pair, first and
last, because the leaf moves. The interpreter itself says what calls what, at the leaf, before the time begins; each
phase knows how many frames that must be.
"""

import asyncio
import functools
import json
import os
import random
import re
import sys
import threading
import time

TRUTHS = []
PHASES = []
BASE = 0  # frames from the module to round_of_all


def phase(frames, kind="cpu", own_root=False):
    """Registers a phase of so many frames, from its own to the leaf's. An own root: on another thread."""

    def register(function):
        PHASES.append((function, frames, kind, own_root))
        return function

    return register


class Truth:
    def __init__(self, name, kind, depth, length):
        self.name, self.kind, self.depth, self.length = name, kind, depth, length
        self.work = 0

    def look(self, first, last):
        """Called by the leaf, before it takes the clocks: what is below. Its lines count from its own first one."""
        frame = sys._getframe(1)
        leaf = frame
        chain = []
        while frame:
            code = frame.f_code
            line = [leaf.f_code.co_firstlineno + first, leaf.f_code.co_firstlineno + last] if frame is leaf else frame.f_lineno
            chain.append([code.co_name, getattr(code, "co_qualname", code.co_name), code.co_filename, line])
            frame = frame.f_back
        self.chain = chain[::-1]
        if len(chain) != self.depth:
            sys.exit("chains.py: %s has %d frames, not %d: %s" % (self.name, len(chain), self.depth, self.chain))
        self.tid = threading.get_native_id()
        TRUTHS.append(self)


def leaf(t):
    n, now, cpu = 0, time.monotonic_ns, time.thread_time_ns
    t.look(3, 11)
    t.start = now()
    t.cpu = cpu()
    until = t.start + t.length
    while now() < until:
        for i in range(50):
            n = n + i
        t.work += 1
    t.cpu = cpu() - t.cpu
    t.end = now()


def sleep_leaf(t):
    now, cpu = time.monotonic_ns, time.thread_time_ns
    t.look(3, 7)
    t.start = now()
    t.cpu = cpu()
    time.sleep(t.length / 1e9)
    t.cpu = cpu() - t.cpu
    t.end = now()


def library_leaf(t):
    """Spends its time in C that calls nothing back."""
    text, now, cpu = "%d" % t.length * 50, time.monotonic_ns, time.thread_time_ns
    t.look(4, 11)
    t.start = now()
    t.cpu = cpu()
    until = t.start + t.length
    while now() < until:
        sorted(text)
        t.work += 1
    t.cpu = cpu() - t.cpu
    t.end = now()


@phase(3)
def plain(t):
    between(t)


def between(t):
    leaf(t)


@phase(42)
def recursion(t):
    recurse(t, 40)


def recurse(t, n):
    if n > 1:
        recurse(t, n - 1)
    else:
        leaf(t)


@phase(4)
def generators(t):
    for _ in outer_generator(t):
        pass


def outer_generator(t):
    yield 1
    yield from inner_generator(t)


def inner_generator(t):
    yield 2
    leaf(t)
    yield 3


# From 3.12 on, a list comprehension has no frame of its own.
@phase(3 if sys.version_info < (3, 12) else 2)
def comprehension(t):
    return [leaf(t) for _ in range(1)]


@phase(4)
def generator_expression(t):
    return any(between(t) for _ in range(1))


@phase(3)
def sort_key(t):
    once = [t]

    def key(n):
        if once:
            leaf(once.pop())
        return n

    sorted([3, 1, 2], key=key)


@phase(3)
def reduce(t):
    functools.reduce(lambda a, b: leaf(t), [1, 2])


class Method:
    def __init__(self, t):
        self.t = t

    def __getattr__(self, name):
        leaf(self.t)
        return name

    @property
    def value(self):
        return self.missing

    @staticmethod
    def static(t):
        leaf(t)

    @classmethod
    def of_class(cls, t):
        cls.static(t)

    def __call__(self):
        self.of_class(self.t)


@phase(4)
def attributes(t):
    return Method(t).value


@phase(5)
def methods(t):
    Method(t)()


@phase(3)
def class_body(t):
    class Body:
        leaf(t)

    return Body


@phase(4)
def exec_text(t):
    exec(compile("def made(t):\n    leaf(t)\n\nmade(t)\n", "<made text>", "exec"), {"t": t, "leaf": leaf})


@phase(3)
def naïve_имя(t):
    名前(t)


def 名前(t):
    leaf(t)


@phase(3)
def regular_expression(t):
    def replace(match):
        leaf(t)
        return ""

    re.compile("b").sub(replace, "abc")


@phase(6)
def json_default(t):
    def default(value):
        leaf(t)
        return None

    json.dumps({"a": [object()]}, default=default)


def with_arguments(t, *args, **kwargs):
    leaf(t)


@phase(3)
def partial(t):
    functools.partial(with_arguments, t, 1, a=2)()


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorated
@decorated
def inside_decorators(t):
    leaf(t)


@phase(5)
def decorators(t):
    inside_decorators(t)


class Context:
    def __init__(self, t):
        self.t = t

    def __enter__(self):
        return self

    def __exit__(self, *_):
        leaf(self.t)
        return True


@phase(3)
def exit_of_with(t):
    with Context(t):
        raise ValueError("known")


@phase(2)
def in_except(t):
    try:
        recurse_and_raise(5)
    except ValueError:
        leaf(t)


def recurse_and_raise(n):
    if n:
        recurse_and_raise(n - 1)
    raise ValueError("known")


@phase(2)
def in_c(t):
    library_leaf(t)


@phase(3, kind="off")
def sleeping(t):
    sleep_between(t)


def sleep_between(t):
    sleep_leaf(t)


# threading calls run through _bootstrap and _bootstrap_inner.
@phase(5, own_root=True)
def thread(t):
    other = threading.Thread(target=between, args=(t,))
    other.start()
    other.join()


async def outer_coroutine(t):
    await asyncio.sleep(0)
    await inner_coroutine(t)


async def inner_coroutine(t):
    leaf(t)


def frames_of_asyncio():
    """How many frames the event loop has is its own affair."""
    seen = []

    async def look():
        frame = sys._getframe()
        while frame:
            seen.append(frame)
            frame = frame.f_back

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.wait_for(look(), None))
    loop.close()
    here = sys._getframe()
    return len(seen[1 : seen.index(here)])


@phase(4 + frames_of_asyncio())
def asynchronous(t):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.wait_for(outer_coroutine(t), None))
    loop.close()


def descend(t, function, n):
    if n > 1:
        descend(t, function, n - 1)
    else:
        function(t)


def round_of_all(order):
    order = order.sample(PHASES, len(PHASES))
    for function, frames, kind, own_root in order:
        n = random.randint(1, 15)
        depth = frames if own_root else BASE + n + frames
        descend(Truth(function.__name__, kind, depth, random.randint(5000000, 25000000)), function, n)


def main():
    global BASE
    BASE = 3  # <module>, main, round_of_all
    if len(sys.argv) < 2:
        sys.exit("usage: chains.py FILE [SECONDS [SEED]]")
    random.seed(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    until = time.monotonic() + (float(sys.argv[2]) if len(sys.argv) > 2 else 2)
    while True:
        round_of_all(random)
        if time.monotonic() >= until:
            break
    with open(sys.argv[1], "w") as f:
        for t in TRUTHS:
            line = {"phase": t.name, "pid": os.getpid(), "tid": t.tid, "kind": t.kind, "start_ns": t.start, "end_ns": t.end, "cpu_ns": t.cpu, "chain": t.chain}
            print(json.dumps(line), file=f)
    spun = [t for t in TRUTHS if t.name != "in_c" and t.work]
    print(json.dumps({"work": sum(t.work for t in spun), "cpu_ns": sum(t.cpu for t in spun), "ns": sum(t.end - t.start for t in spun)}))


if __name__ == "__main__":
    main()
