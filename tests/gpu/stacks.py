#!/usr/bin/env python3
"""How whole the stacks of a PyTorch loop are, and what they cost it.

  stacks.py [--seconds 4] [--rounds 4]

GDIAG names the binary (default: target/release/gdiag), STACKS the example of that name, which counts (cargo build
--release --example stacks). Needs root, a GPU, and a python3 with torch. Each round runs the loop once in each way, in another
order; prints a table of steps a second, then what is in the stacks. Writes to $OUT (or target/gpu).
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

import toolkit

REPO = os.path.abspath(os.path.join(toolkit.HERE, "../.."))
GDIAG = os.environ.get("GDIAG", os.path.join(REPO, "target/release/gdiag"))
STACKS = os.environ.get("STACKS", os.path.join(REPO, "target/release/examples/stacks"))
TRAIN = [sys.executable, os.path.join(toolkit.HERE, "train_small.py"), "--mode", "small"]

WAYS = {
    "alone": None,
    "no stacks": ["--no-stacks"],
    "99 Hz": ["-F", "99"],
    "99 Hz + 1 launch in 100": ["-F", "99", "--launch-stacks", "100"],
}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--seconds", type=float, default=4)
    args.add_argument("--rounds", type=int, default=4)
    args.add_argument("--show", type=int, default=2, help="stacks to print in full")
    args = args.parse_args()
    out = toolkit.out_dir()
    tmp = tempfile.mkdtemp(prefix="stacks-")
    rates = {way: [] for way in WAYS}
    said = {}
    for _ in range(args.rounds):
        order = list(WAYS)
        random.shuffle(order)
        for way in order:
            job = TRAIN + ["--seconds", str(args.seconds)]
            data = f"{tmp}/{way.replace(' ', '-')}.data"
            if WAYS[way] is not None:
                job = [GDIAG, "record", "-v", "-o", data, *WAYS[way], "--", *job]
            done = subprocess.run(job, capture_output=True, text=True)
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode or not lines:
                print(way, "failed:", done.stderr[-2000:])
                continue
            rates[way].append(json.loads(lines[-1])["steps_s"])
            said[way] = [line for line in done.stderr.splitlines() if "gdiag" in line]
    base = statistics.median(rates["alone"] or [1])
    for way in WAYS:
        if WAYS[way] is None or way not in said:
            continue
        data = f"{tmp}/{way.replace(' ', '-')}.data"
        print(f"== {way}")
        print("\n".join(said[way]))
        counted = subprocess.run([STACKS, data, str(args.show)], capture_output=True, text=True)
        print(counted.stdout[-6000:], counted.stderr[-500:])
        for mode in ["idle", "mixed", "gpu", "cpu", "offcpu"]:
            svg = f"{out}/{way.replace(' ', '-')}-{mode}.svg"
            drawn = subprocess.run([GDIAG, "flame", "-i", data, "--mode", mode, "-o", svg], capture_output=True, text=True)
            print(mode, drawn.returncode, drawn.stderr.strip()[-300:])
        print(subprocess.run([GDIAG, "report", "-i", data], capture_output=True, text=True).stdout[:3500])
    print(f"{'':26}{'steps/s':>9}{'least':>9}{'most':>9}{'slowdown':>10}")
    for way, found in rates.items():
        if found:
            middle = statistics.median(found)
            print(f"{way:26}{middle:9.1f}{min(found):9.1f}{max(found):9.1f}{base / middle:10.3f}")


if __name__ == "__main__":
    main()
