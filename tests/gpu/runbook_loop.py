#!/usr/bin/env python3
"""A PyTorch loop with one known fault, for as long as it is left alone. See runbooks.py.

  runbook_loop.py --fault NAME [--cpu N] [--ready FILE] [--seconds S]

  none      large products, some steps ahead of the device: it is hardly ever idle
  hog       small operations, all on CPU N: start something else there, too
  loader    a DataLoader with one worker that takes 20 ms of CPU for each item
  item      a short step that ends with .item()
  sleep     a pause of 3 ms in each step: a step takes longer than without
  stall     a pause of 300 ms every 2 s
  rank      needs --rank 0 or 1 and --meet FILE: meets the other one by gloo after each step; rank 1 sleeps 30 ms before
"""

import argparse
import os
import time
import zlib

FAULTS = ["none", "hog", "loader", "item", "sleep", "stall", "rank"]


def slow_batches(torch):
    class Decoded(torch.utils.data.Dataset):
        raw = zlib.compress(os.urandom(1 << 16))

        def __len__(self):
            return 1 << 30

        def __getitem__(self, index):
            end = time.thread_time() + 0.020
            while time.thread_time() < end:
                zlib.decompress(self.raw)
            return torch.full((64, 256), float(index % 7))

    return iter(torch.utils.data.DataLoader(Decoded(), batch_size=2, num_workers=1, prefetch_factor=2))


class Products:
    """Steps of some products, of which so many are ahead of the device."""

    def __init__(self, torch, count, ahead):
        self.torch, self.count = torch, count
        self.done = [torch.cuda.Event() for _ in range(ahead)]
        self.a, self.b, self.c = (torch.randn(2048, 2048, device="cuda") for _ in range(3))
        self.steps = 0

    def __call__(self):
        for _ in range(self.count):
            self.torch.mm(self.a, self.b, out=self.c)
        event = self.done[self.steps % len(self.done)]
        # Of the step that took this place before.
        event.synchronize()
        event.record()
        self.steps += 1


def make_step(torch, args):
    if args.fault in ("none", "stall", "sleep"):
        products = Products(torch, 5, 8 if args.fault != "sleep" else 1)
        stalled = [time.monotonic()]

        def step():
            products()
            if args.fault == "sleep":
                torch.cuda.synchronize()
                time.sleep(0.003)
            if args.fault == "stall" and time.monotonic() - stalled[0] >= 2:
                torch.cuda.synchronize()
                time.sleep(0.3)
                stalled[0] = time.monotonic()

        return step
    if args.fault == "item":
        a, b = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
        return lambda: torch.mm(a, b)[0, 0].item()
    if args.fault == "rank":
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method="file://" + args.meet, rank=args.rank, world_size=2)
        products, total = Products(torch, 5, 1), torch.zeros(8)

        def step():
            products()
            torch.cuda.synchronize()
            if args.rank == 1:
                time.sleep(0.030)
            dist.all_reduce(total)

        return step
    from torch import nn

    model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU())]).cuda()
    x = torch.randn(64, 256, device="cuda")
    batches = slow_batches(torch) if args.fault == "loader" else None

    def step():
        batch = x if batches is None else next(batches).cuda().reshape(-1, 256)
        model(batch).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fault", choices=FAULTS, required=True)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--ready", help="this file is made when the loop is warm")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--meet", help="a file that both ranks find")
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    import torch

    step = make_step(torch, args)
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    if args.ready:
        open(args.ready, "w").close()
    end = time.monotonic() + args.seconds
    while time.monotonic() < end:
        step()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
