"""Helper processes that a case forks and talks to through a socket, a pipe, or a TCP connection on this machine."""

import json
import os
import socket
import traceback

from load import Span, follow_parent, now, set_name


class Channel:
    """Lines of JSON over a pair of sockets or files."""

    def __init__(self, incoming, outgoing=None):
        self._incoming = incoming
        self._outgoing = outgoing or incoming
        self._lines = incoming.makefile("rb") if isinstance(incoming, socket.socket) else incoming

    def send(self, message):
        data = json.dumps(message).encode() + b"\n"
        if isinstance(self._outgoing, socket.socket):
            self._outgoing.sendall(data)
        else:
            self._outgoing.write(data)
            self._outgoing.flush()

    def receive(self):
        """The next message; None at the end."""
        line = self._lines.readline()
        return json.loads(line) if line else None

    def close(self):
        for end in {self._lines, self._incoming, self._outgoing}:
            end.close()


def socket_pair():
    return tuple(Channel(end) for end in socket.socketpair())


def pipe_pair():
    (there, here), (back, home) = os.pipe(), os.pipe()
    return (
        Channel(os.fdopen(back, "rb"), os.fdopen(here, "wb")),
        Channel(os.fdopen(there, "rb"), os.fdopen(home, "wb")),
    )


def tcp_channel(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Channel(connection)


def tcp_pair():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        here = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
    return tcp_channel(here), tcp_channel(there)


class Helper:
    """A process that serves until the other end is closed: `serve(channel)`."""

    def __init__(self, name, serve, pair=socket_pair):
        self.channel, other = pair()
        self.pid = os.fork()
        if self.pid == 0:
            self.channel.close()
            child(name, serve, other)
        other.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()
        os.waitpid(self.pid, 0)

    def ask(self, message=0):
        self.channel.send(message)

    def answer(self):
        return self.channel.receive()


def child(name, serve, *arguments):
    """The rest of the life of a forked process; without a name it is called what its parent is."""
    status = 1
    try:
        follow_parent()
        if name:
            set_name(name)
        serve(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def elsewhere(name, prepare):
    """The life of a twin whose fault is in another process, which is only looked at when the next one is due.
    `prepare` is called there, and returns a function that returns a span."""
    truths = []

    def serve(channel):
        work = prepare()
        channel.send("ready")
        for _ in iter(channel.receive, None):
            channel.send(work())

    def fault(truth):
        if truths:
            truth.add(Span(*helper.answer()))
        else:
            truths.append(truth)
        helper.ask()

    with Helper(name, serve) as helper:
        helper.answer()
        yield fault
        # There are no more steps, and the device has to wait for the last one.
        end = now()
        for truth in truths:
            truth.step += 1
            truth.add_within([helper.answer()], 0, end)
