"""Nothing to do: a server that launches for each request, and a client outside of the job that sends few."""

import asyncio
import queue
import random
import selectors
import socket
import threading
import time

import outside
from helpers import Channel
from load import BUSY, Span, Steps, case, now


@outside.service("client")
def client(_channel, request):
    """Sends a request now and then: the time at which it does."""
    rng = random.Random(request["count"])

    def connect():
        return Channel(socket.create_connection(("127.0.0.1", request["port"])))

    connection = None
    for _ in range(request["count"]):
        time.sleep(rng.uniform(0.015, 0.025))
        if connection is None:
            connection = connect()
        connection.send(now())
        connection.receive()
        if request["reconnect"]:
            connection.close()
            connection = None


class Engine:
    """What a server does for each request, and the truth of the time between two."""

    # Of the twin: more than the device does from one request to the next.
    AHEAD = 3

    def __init__(self, run, truth):
        self.steps = Steps(run.gpu, run.twin, run.rng)
        self.steps.fill()
        self.each = self.AHEAD if run.twin else 1
        self.left = run.gaps + 1  # Before the first request the device has not been used.
        self.truth = truth
        self.idle = None

    def answer(self, sent):
        if self.idle:
            self.truth.add(Span.whole(self.idle, sent))
        for _ in range(self.each):
            self.steps()
        self.truth.step += 1
        self.left -= 1

    def ready(self):
        """The answer is sent, and there is nothing to do."""
        self.idle = now()


@case("no-demand", "host.no-demand", BUSY, outside=True)
def no_demand(run, truth):
    """An asyncio server whose client, on one connection, sends a request every 20 ms; each of the twin's keeps the
    device busy for longer."""
    engine = Engine(run, truth)

    async def serve():
        finished = asyncio.get_running_loop().create_future()

        async def handle(reader, writer):
            while engine.left:
                engine.answer(int(await reader.readline()))
                writer.write(b"0\n")
                await writer.drain()
                engine.ready()
            writer.close()
            finished.set_result(None)

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        channel = outside.connect("client", port=port, count=engine.left, reconnect=False)
        await finished
        channel.close()
        server.close()

    asyncio.run(serve())
    run.gpu.synchronize()


@case("no-demand-accept", "host.no-demand", BUSY, outside=True)
def no_demand_accept(run, truth):
    """A server that waits for connections; its client makes one every 20 ms, with a request."""
    engine = Engine(run, truth)
    with socket.socket() as listener, selectors.DefaultSelector() as selector:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        selector.register(listener, selectors.EVENT_READ)
        channel = outside.connect("client", port=listener.getsockname()[1], count=engine.left, reconnect=True)
        while engine.left:
            selector.select()
            connection, _ = listener.accept()
            request = Channel(connection)
            engine.answer(request.receive())
            request.send("done")
            request.close()
            engine.ready()
        channel.close()
    run.gpu.synchronize()


@case("no-demand-queue", "host.no-demand", BUSY, outside=True)
def no_demand_queue(run, truth):
    """The launching thread waits on a queue, and the thread that fills it for requests."""
    engine = Engine(run, truth)
    requests, answers = queue.Queue(), queue.Queue()

    def receive(listener):
        connection, _ = listener.accept()
        channel = Channel(connection)
        for sent in iter(channel.receive, None):
            requests.put(sent)
            channel.send(answers.get())
        channel.close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        thread = threading.Thread(target=receive, args=(listener,), daemon=True)
        thread.start()
        channel = outside.connect("client", port=listener.getsockname()[1], count=engine.left, reconnect=False)
        while engine.left:
            engine.answer(requests.get())
            engine.ready()
            answers.put("done")
        thread.join()
        channel.close()
    run.gpu.synchronize()
