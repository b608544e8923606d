#!/usr/bin/env python3
"""A training loop with the same result each time, to attach to: attach.py starts it and watches it through files.

  attach_loop.py [--mode eager|graph|threads|measure] [--steps N] [--hold] [--late|--engine] [--driver torch|cuda] DIR

  eager     one operation after the other, .item() of the loss at the end of each step
  graph     the whole step as a CUDA graph, captured and instantiated before DIR/ready is there
  threads   eager, with batches from worker processes that are forked anew for each epoch, through pinned memory
  measure   no training: for each number on stdin, so many calls of one small operation, timed

The steps begin when DIR/ready is there, and with --hold DIR/go too. They end after N, or when DIR/stop is there. DIR/series
has their number, then the time of CLOCK_MONOTONIC at which each ended, as 64-bit numbers. DIR/profile asks for torch.profiler
around as many steps as it says: DIR/profiling is there meanwhile, and DIR/profiled, with what the profiler saw, after it.
--late waits for DIR/go before torch is imported, and DIR/ready is there before that; --engine has a process of its own do the
work, spawned at DIR/go; DIR/child has its number. Prints one line of JSON: hashes of all losses and weights, and of the losses
so far at each hundredth step. --driver cuda needs no torch: it only launches.
"""

import argparse
import hashlib
import json
import mmap
import multiprocessing
import os
import re
import struct
import sys
import time

import faultlib

ROOM = 1 << 20
LIMIT_S = 400
EPOCH = 40
WIDTH, BLOCKS, TOKENS, BATCH = 512, 6, 64, 32


class Folder:
    def __init__(self, path):
        self.path = path

    def __getitem__(self, name):
        return os.path.join(self.path, name)

    def has(self, name):
        return os.access(self[name], os.F_OK)

    def put(self, name, text=""):
        """Whole or not at all."""
        with open(self[name] + ".new", "w") as file:
            file.write(text)
        os.rename(self[name] + ".new", self[name])

    def wait(self, name):
        deadline = time.monotonic() + LIMIT_S
        while not self.has(name) and not self.has("stop") and time.monotonic() < deadline:
            time.sleep(0.002)


class Series:
    def __init__(self, path):
        with open(path, "w+b") as file:
            file.truncate(8 * (ROOM + 1))
            self.map = mmap.mmap(file.fileno(), 8 * (ROOM + 1))
        self.count = 0

    def add(self):
        self.count += 1
        struct.pack_into("=Q", self.map, 8 * self.count, time.monotonic_ns())
        struct.pack_into("=Q", self.map, 0, self.count)


class DriverSteps:
    """Only launches; the loss is arithmetic."""

    workers = ()

    def __init__(self):
        self.gpu = faultlib.DriverGpu()
        self.value = 1

    def __call__(self, number):
        for _ in range(10):
            self.gpu.spin(500_000)
        self.gpu.synchronize()
        self.value = self.value * 6364136223846793005 % (1 << 64) + number
        return float(self.value >> 40)

    def weights(self):
        return struct.pack("=Q", self.value)


def model(torch):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
            x = x + self.out(torch.softmax(q @ k.transpose(-2, -1) * WIDTH**-0.5, dim=-1) @ v)
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    return nn.Sequential(*[Block() for _ in range(BLOCKS)])


class Batches:
    """An item is the same whoever makes it. At module level, so that a worker may be of any kind."""

    def __len__(self):
        return EPOCH * BATCH

    def __getitem__(self, index):
        import torch

        made = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(index))
        return made[0], made[1]


class TorchSteps:
    def __init__(self, mode):
        import torch

        self.torch = torch
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(1)
        self.workers = set()
        self.model = model(torch).cuda()
        # foreach kernels would be few; a loop with many small ones is the harder case.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
        generator = torch.Generator().manual_seed(2)
        self.batches = [torch.randn(2, BATCH, TOKENS, WIDTH, generator=generator).cuda() for _ in range(4)]
        self.epoch, self.loader = None, None
        self.step = self.eager
        if mode == "threads":
            self.loader = torch.utils.data.DataLoader(Batches(), batch_size=BATCH, num_workers=3, pin_memory=True,
                                                      multiprocessing_context="fork")
            self.step = self.loaded
        if mode == "graph":
            self.capture()
            self.step = self.replay

    def train(self, x, y):
        loss = self.torch.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss

    def eager(self, number):
        loss = self.train(*self.batches[number % len(self.batches)])
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def loaded(self, number):
        if number % EPOCH == 0:
            self.epoch = iter(self.loader)
            self.workers.update(child.pid for child in multiprocessing.active_children())
        x, y = (part.cuda(non_blocking=True) for part in next(self.epoch))
        loss = self.train(x, y)
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def capture(self):
        torch = self.torch
        self.input = self.batches[0].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.train(self.input[0], self.input[1])
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = self.train(self.input[0], self.input[1])

    def replay(self, number):
        self.input.copy_(self.batches[number % len(self.batches)])
        self.graph.replay()
        return self.loss.item()

    def __call__(self, number):
        return self.step(number)

    def weights(self):
        return b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in self.model.parameters())

    def profile(self, folder, count, step):
        """What torch.profiler saw of the device in so many steps."""
        kinds = self.torch.profiler.ProfilerActivity
        activities = [kinds.CUDA] if count > 50 else [kinds.CPU, kinds.CUDA]  # the trace of more takes too long to write
        self.torch.cuda.synchronize()
        begin = time.monotonic_ns()
        with self.torch.profiler.profile(activities=activities) as profiler:
            folder.put("profiling")
            for _ in range(count):
                step()
            self.torch.cuda.synchronize()
            os.unlink(folder["profiling"])
        steps_end = time.monotonic_ns()
        trace = folder["trace.json"]
        profiler.export_chrome_trace(trace)
        events = {}
        with open(trace, errors="replace") as file:
            for line in file:
                for kind in re.findall(r'"cat":\s*"(kernel|gpu_memcpy|gpu_memset|cuda_runtime|cuda_driver)"', line):
                    events[kind] = events.get(kind, 0) + 1
        os.unlink(trace)
        return {"steps": count, "events": events, "begin_ns": begin, "steps_end_ns": steps_end, "end_ns": time.monotonic_ns()}


def train(args):
    faultlib.follow_parent()
    folder = Folder(args.folder)
    series = Series(folder["series"])
    steps = TorchSteps(args.mode) if args.driver == "torch" else DriverSteps()
    losses, checks, profiles = hashlib.sha256(), [], []
    finite = True

    def step():
        nonlocal finite
        loss = steps(series.count)
        finite = finite and loss - loss == 0
        losses.update(struct.pack("=d", loss))
        series.add()
        if series.count % 100 == 0:
            checks.append(losses.hexdigest()[:16])

    for _ in range(20):
        step()
    if not args.late:
        folder.put("ready")
    if args.hold:
        folder.wait("go")
    deadline = time.monotonic() + LIMIT_S
    while not folder.has("stop") and series.count != args.steps and series.count < ROOM - 10_000 and time.monotonic() < deadline:
        if folder.has("profile") and args.driver == "torch":
            with open(folder["profile"]) as file:
                count = int(file.read())
            os.unlink(folder["profile"])
            profiles.append(steps.profile(folder, count, step))
            folder.put("profiled", json.dumps(profiles[-1]))
        step()
    print(json.dumps({"mode": args.mode, "pid": os.getpid(), "steps": series.count, "finite": finite, "losses": losses.hexdigest()[:16], "checks": checks,
                      "weights": hashlib.sha256(steps.weights()).hexdigest()[:16], "workers": len(steps.workers), "profiles": profiles}), flush=True)


def measure(args):
    """As launchloop does it: with a synchronisation after 256."""
    folder = Folder(args.folder)
    if args.driver == "torch":
        import torch

        x = torch.zeros(256, device="cuda")

        def call():
            x.add_(1.0)

        synchronize = torch.cuda.synchronize
    else:
        gpu = faultlib.DriverGpu()
        synchronize = gpu.synchronize

        def call():
            gpu.spin(0)

    def chunk():
        begin = time.perf_counter_ns()
        for _ in range(256):
            call()
        took = (time.perf_counter_ns() - begin) / 256
        synchronize()
        return took

    for _ in range(40):
        chunk()
    folder.put("ready")
    for line in sys.stdin:
        times = sorted(chunk() for _ in range(max(int(line) // 256, 1)))
        print(json.dumps({"mean": round(sum(times) / len(times), 1), "p50": round(times[len(times) // 2], 1)}), flush=True)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--mode", choices=["eager", "graph", "threads", "measure"], default="eager")
    args.add_argument("--steps", type=int, default=-1)
    args.add_argument("--hold", action="store_true")
    args.add_argument("--late", action="store_true")
    args.add_argument("--engine", action="store_true")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("folder", metavar="DIR")
    args = args.parse_args()
    faultlib.follow_parent()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if args.late or args.engine:
        folder = Folder(args.folder)
        folder.put("ready")
        folder.wait("go")
    if args.engine:
        args.late = True  # the parent is ready already
        child = multiprocessing.get_context("spawn").Process(target=train, args=(args,))
        child.start()
        folder.put("child", str(child.pid))
        child.join()
        sys.exit(0 if child.exitcode == 0 else 1)
    (measure if args.mode == "measure" else train)(args)


if __name__ == "__main__":
    main()
