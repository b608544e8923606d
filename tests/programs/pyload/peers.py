"""Faults in other processes of the job that the dispatcher waits for through a socket or a pipe."""

import os
import pickle
import time

from helpers import Helper, pipe_pair, socket_pair, tcp_pair
from load import AHEAD, Clocks, case, keep_away, now
from work import Detokenizer


def serve(channel, prepare):
    """`prepare` is called here, and returns a function of ns that returns its span."""
    work = prepare()
    channel.send(os.getpid())
    for ns in iter(channel.receive, None):
        channel.send(work(ns))


def awaited(run, channel):
    """A fault that is what the other end does before it answers."""
    pid = channel.receive()

    def fault(truth):
        keep_away(pid)
        start = now()
        channel.send(run.length(12))
        span = channel.receive()
        truth.add_within([span], start, now())

    return fault


def peer(run, name, pair, prepare):
    """A helper process that is asked, and awaited."""
    with Helper(name, lambda channel: serve(channel, prepare), pair) as helper:
        yield awaited(run, helper.channel)


def sleeper():
    def pause(ns):
        clocks = Clocks()
        time.sleep(ns / 1e9)
        return clocks.waited()

    return pause


def detokenizer():
    return Detokenizer().detokenize


def unpickler():
    data = pickle.dumps([(n, str(n)) for n in range(20000)])

    def unpickle(ns):
        clocks = Clocks()
        while now() < clocks.at + ns:
            pickle.loads(data)
        return clocks.ran()

    return unpickle


@case("process-compute", "host.compute", AHEAD)
def process_compute(run):
    """A detokeniser in a process of its own, asked and awaited through a pipe."""
    yield from peer(run, "detokenizer", pipe_pair, detokenizer)


@case("process-unnamed", "host.compute", AHEAD)
def process_unnamed(run):
    """A process that unpickles, called what its parent is, asked and awaited through a pair of sockets."""
    yield from peer(run, None, socket_pair, unpickler)


@case("tcp-compute", "host.compute", AHEAD)
def tcp_compute(run):
    """A process of the job that computes before it answers over TCP on this machine."""
    yield from peer(run, "tokenizer", tcp_pair, detokenizer)


@case("socket-sleep", "host.sleep", AHEAD)
def socket_sleep(run):
    """A process of the job that sleeps before it answers over a pair of sockets."""
    yield from peer(run, "slow-peer", socket_pair, sleeper)


@case("tcp-sleep", "host.sleep", AHEAD)
def tcp_sleep(run):
    """A process of the job that sleeps before it answers over TCP on this machine."""
    yield from peer(run, "slow-peer", tcp_pair, sleeper)
