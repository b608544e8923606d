"""Spends CPU time below known chains of calls, for tests/python_stacks.rs.

Each case ends in spin(), which first notes what the interpreter itself says of its callers.
Those notes, one JSON line a case, are what sampled stacks are compared with.
"""
import asyncio
import functools
import json
import sys
import threading
import time

seconds = 0.0
cases = []


def spin(case):
    callers = []
    frame = sys._getframe().f_back
    while frame:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        callers.append([name, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    cases.append({"case": case, "thread": threading.get_native_id(), "callers": callers})
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(500):
            pass
    return 0


def recursion(depth, case):
    if depth:
        return recursion(depth - 1, case)
    return spin(case)


def generator():
    yield 1
    spin("generator")
    yield 2


def delegating():
    yield from generator()


def for_loop():
    for _ in delegating():
        pass


def generator_from_c():
    return sum(generator_of("from_c"))


def generator_of(case):
    yield spin(case)


def comprehension():
    return [spin("comprehension") for _ in range(1)]


def generator_expression():
    return list(spin("generator_expression") for _ in range(1))


def sort_key(_):
    return spin("sort")


def c_callbacks():
    sorted([1], key=sort_key)
    list(map(lambda _: spin("map"), [1]))
    functools.reduce(lambda a, b: spin("reduce"), [1, 2])


def nested_callbacks():
    return sorted([1], key=lambda _: list(map(lambda _: functools.reduce(lambda a, b: spin("nested"), [1, 2]), [1]))[0])


def class_body():
    class Body:
        value = spin("class")


class Thing:
    def __init__(self):
        spin("init")

    @property
    def property(self):
        return spin("property")

    def __getattr__(self, name):
        return spin("getattr")

    def __add__(self, other):
        return spin("add")

    def __enter__(self):
        return spin("enter")

    def __exit__(self, *exc):
        return False

    @classmethod
    def class_method(cls):
        return spin("class_method")

    def __del__(self):
        spin("del")


def methods():
    thing = Thing()
    thing.property
    thing.missing
    thing + 1
    with thing:
        pass
    Thing.class_method()
    del thing


def executed():
    exec("def inner():\n\n  return spin('exec')\ninner()\n")
    eval("(lambda: spin('eval'))()")


def decorator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@decorator
@decorator
def decorated():
    return spin("decorated")


@functools.lru_cache
def cached():
    return spin("cached")


def café():
    return spin("latin1")


async def coroutine():
    return await awaited()


async def awaited():
    await asyncio.sleep(0)
    return spin("async")


def ended_by_exception():
    try:
        raise ValueError
    except ValueError:
        spin("except")
    finally:
        spin("finally")


def elsewhere(source, file):
    scope = {"spin": spin}
    exec(compile(source, file, "exec"), scope)
    return scope["run"]()


def on_threads():
    threads = [threading.Thread(target=recursion, args=(20, "thread")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def every_case():
    recursion(50, "deep")
    for_loop()
    generator_from_c()
    comprehension()
    generator_expression()
    c_callbacks()
    nested_callbacks()
    class_body()
    methods()
    executed()
    decorated()
    cached()
    café()
    asyncio.run(coroutine())
    ended_by_exception()
    elsewhere("def run():\n return \u011caro()\ndef \u011caro():\n return spin('ucs2')\n", "\u011caro.py")
    elsewhere("def run():\n return spin('ucs4')\n", "\U0001f40d.py")
    on_threads()
    recursion(200, "deeper")


# Once without: what is imported or filled at first use is there then.
every_case()
cases.clear()
cached.cache_clear()
seconds = float(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
every_case()
for case in cases:
    print(json.dumps(case))
