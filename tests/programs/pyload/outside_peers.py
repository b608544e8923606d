"""Faults of servers that are no part of the job: on this machine, and behind a network link."""

import ctypes
import os
import socket
import subprocess
import sys

import outside
from helpers import child, tcp_channel
from load import AHEAD, case
from peers import awaited, detokenizer, serve, sleeper

WORK = {"sleeper": sleeper, "detokenizer": detokenizer}


def listen(channel, host, request):
    """Serves one connection, and tells where."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen(1)
        channel.send(listener.getsockname())
        connection, _ = listener.accept()
    serve(tcp_channel(connection), WORK[request["work"]])


@outside.service("server")
def server(channel, request):
    listen(channel, "127.0.0.1", request)


@outside.service("remote")
def remote(channel, request):
    """As `server`, in a network of its own: for all that is recorded here, on another machine."""
    here, there = "pyload%d" % os.getpid(), "pyload-peer"
    address = "169.254.%d.%%d" % (os.getpid() % 255)
    # Closing is telling: that it has its network, and that this is linked.
    apart_reads, apart_writes = os.pipe()
    linked_reads, linked_writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(apart_reads)
        os.close(linked_writes)
        child("remote", apart, channel, there, address % 2, apart_writes, linked_reads, request)
    os.close(apart_writes)
    os.read(apart_reads, 1)
    ip("link add %s type veth peer name %s netns %d" % (here, there, pid))
    ip("addr add %s/30 dev %s" % (address % 1, here))
    ip("link set %s up" % here)
    os.close(linked_writes)
    # The link is gone with the other network.
    os.waitpid(pid, 0)


def apart(channel, link, address, ready, linked, request):
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET
        sys.exit("pyload: no network of its own: %s" % os.strerror(ctypes.get_errno()))
    os.close(ready)
    os.read(linked, 1)
    ip("addr add %s/30 dev %s" % (address, link))
    ip("link set %s up" % link)
    listen(channel, address, request)


def ip(arguments):
    subprocess.run(["ip", *arguments.split()], check=True)


def outside_peer(run, service, work):
    channel = outside.connect(service, work=work)
    connection = tcp_channel(socket.create_connection(tuple(channel.receive())))
    yield awaited(run, connection)
    connection.close()
    channel.close()


@case("network", "host.network", AHEAD, outside=True)
def network(run):
    """A server on what is another machine to this one, as far as its network goes."""
    yield from outside_peer(run, "remote", "sleeper")


@case("outside-compute", "host.compute", AHEAD, outside=True)
def outside_compute(run):
    """A server on this machine, no part of the job, that computes before it answers over TCP."""
    yield from outside_peer(run, "server", "detokenizer")


@case("outside-sleep", "host.sleep", AHEAD, outside=True)
def outside_sleep(run):
    """A server on this machine, no part of the job, that sleeps before it answers over TCP."""
    yield from outside_peer(run, "server", "sleeper")
