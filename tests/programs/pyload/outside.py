"""Programs that are no part of the job: an engine that hands it work, a client that asks it.

`pyload.py --outside -- COMMAND` starts them, before COMMAND starts a recording; cases find them by PYLOAD_OUTSIDE.
Each connection to that socket gets a process of its own, for the service that it names.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from helpers import Channel, child
from load import set_name

VARIABLE = "PYLOAD_OUTSIDE"

SERVICES = {}


def service(name):
    """Registers a service: serve(channel, request)."""

    def register(function):
        SERVICES[name] = function
        return function

    return register


def run_beside(command):
    """Runs a command beside the services; returns its exit status."""
    directory = tempfile.mkdtemp(prefix="pyload.")
    try:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.path.join(directory, "outside"))
        listener.listen(8)
        pid = os.fork()
        if pid == 0:
            child("outside", listen, listener)
        listener.close()
        environment = dict(os.environ, **{VARIABLE: os.path.join(directory, "outside")})
        status = subprocess.call(command, env=environment)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return status if status >= 0 else 128 - status
    finally:
        shutil.rmtree(directory)


def listen(listener):
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            child("outside", serve, connection)
        connection.close()


def serve(connection):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel = Channel(connection)
    request = channel.receive()
    set_name(request["service"])
    SERVICES[request["service"]](channel, request)


def connect(name, **request):
    """A channel to a new process that offers the service."""
    path = os.environ.get(VARIABLE)
    if path is None:
        hint = "pyload.py --outside -- gdiag record ... -- pyload.py --case ..."
        sys.exit("pyload: this case needs a program outside of the job\nhint: %s" % hint)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    channel = Channel(connection)
    channel.send(dict(request, service=name))
    return channel
