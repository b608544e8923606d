#!/usr/bin/env python3
"""A small training loop with one known reason for an idle GPU.

  train_small.py --mode small|item|item-small|loader|hog [--seconds 6]

  small       many operations that are shorter than their launches
  item        a training loop that keeps the GPU busy, but for one .item() each step that drains the queue
  item-small  `small` with .item() each step: what it costs is mostly the launches still
  loader      a DataLoader with one worker that spends 20 ms of CPU on each item
  hog         `small`, the whole process pinned to the CPU --cpu; start a hog there first: --be-hog

  train_small.py --be-hog --cpu N     burns CPU N until killed: a program of its own, not part of the job

Prints one line of JSON: steps, steps a second, the steady state (after warm-up) in ns of CLOCK_MONOTONIC, and the
steps of each half second of it.
--ready FILE creates FILE when the steady state begins, for a recorder that attaches.
"""

import argparse
import json
import os
import sys
import time
import zlib


def be_hog():
    while True:
        pass


def arguments():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--mode", choices=["small", "item", "item-small", "loader", "hog"], default="small")
    args.add_argument("--seconds", type=float, default=6.0, help="length of the steady state")
    args.add_argument("--steps", type=int, default=0, help="end after this many steps")
    args.add_argument("--warm-up", type=int, default=20, metavar="STEPS")
    args.add_argument("--cpu", type=int, default=-1)
    args.add_argument("--ready")
    args.add_argument("--be-hog", action="store_true")
    return args.parse_args()


def slow_batches():
    import torch

    class Decoded(torch.utils.data.Dataset):
        """Items that take 20 ms of CPU each, as decoding an image does."""

        raw = zlib.compress(os.urandom(1 << 16))

        def __len__(self):
            return 1 << 30

        def __getitem__(self, index):
            end = time.thread_time() + 0.020
            while time.thread_time() < end:
                zlib.decompress(self.raw)
            return torch.full((64, 256), float(index % 7))

    return iter(torch.utils.data.DataLoader(Decoded(), batch_size=2, num_workers=1, prefetch_factor=2))


def main():
    args = arguments()
    if args.cpu >= 0:
        os.sched_setaffinity(0, {args.cpu})
    if args.be_hog:
        be_hog()
    if args.mode == "hog" and args.cpu < 0:
        sys.exit("--mode hog needs --cpu")

    import torch
    from torch import nn

    torch.manual_seed(1)
    width, rows, layers = 256, 64, 6

    def training(device, width, rows):
        model = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)
        return model, optimizer, torch.randn(rows, width, device=device), torch.randn(rows, width, device=device)

    # PyTorch imports seconds' worth of modules in its first step. Done on the CPU, they are no part of the GPU's idle time.
    model, optimizer, x, y = training("cpu", 8, 8)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    model, optimizer, x, y = training("cuda", width, rows)
    batches = slow_batches() if args.mode == "loader" else None

    def training_step():
        batch = x if batches is None else next(batches).cuda().reshape(-1, width)[:rows]
        loss = nn.functional.mse_loss(model(batch), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() if args.mode == "item-small" else None

    # A linear regression by hand: each operation lasts longer than its launch and little Python runs between them, so
    # that the queue never runs dry but for the .item() that ends each step.
    weight, inputs, truth = (torch.randn(2048, 2048, device="cuda") for _ in range(3))

    def item_step():
        error = inputs @ weight - truth
        weight.sub_(inputs.t() @ error, alpha=1e-9)
        return error.square().mean().item()

    step = item_step if args.mode == "item" else training_step
    for _ in range(args.warm_up if args.mode != "loader" else min(args.warm_up, 5)):
        step()
    torch.cuda.synchronize()
    if args.ready:
        open(args.ready, "w").close()
    steps = 0
    rates = []  # steps that ended in each half second
    start = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    while True:
        step()
        steps += 1
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        rates += [0] * ((now - start) // 500_000_000 + 1 - len(rates))
        rates[-1] += 1
        if steps == args.steps or (not args.steps and now - start >= args.seconds * 1e9):
            break
    torch.cuda.synchronize()
    end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    print(json.dumps({"mode": args.mode, "pid": os.getpid(), "steps": steps, "steps_s": round(steps * 1e9 / (end - start), 1),
                      "start_ns": start, "end_ns": end, "rates": rates}), flush=True)


if __name__ == "__main__":
    main()
