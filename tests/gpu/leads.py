#!/usr/bin/env python3
"""Measure launch costs, leads, gaps and wait latencies of the GPU here, for the simulated GPU to replay.

  leads.py [--scale N]      N, 1 to 10, divides the repetitions

Runs leads.c with spinning and with blocking waits. Writes into $OUT (or target/gpu):
  leads.rs    one `pub const NAME: [i32; 101]` for each distribution: minimum, 1 %, … , maximum, in ns
  leads.json  the same, with counts
and prints a table last. Rows of the blocking run are named `block_…` and kept only where waiting matters.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import toolkit
from toolkit import say


def measure(program, mode, scale):
    say(f"{mode} …")
    try:
        done = subprocess.run([program, mode, str(scale)], capture_output=True, text=True, timeout=180)
    except subprocess.TimeoutExpired as late:
        sys.exit(f"leads {mode} did not end in {late.timeout} s; it said:\n{(late.stderr or b'').decode(errors='replace')}")
    say(done.stderr.rstrip())
    if done.returncode:
        sys.exit(f"leads {mode} ended with status {done.returncode}")
    rows = {}
    for line in done.stdout.splitlines():
        name, count, *quantiles = line.split()
        if len(quantiles) != 101:
            sys.exit(f"leads {mode}: {name} has {len(quantiles)} quantiles")
        rows[name] = {"count": int(count), "quantiles_ns": [int(q) for q in quantiles]}
    return rows, done.stderr.splitlines()


def rust(rows, machine):
    text = f"// Measured by tests/gpu/leads.py: {machine}\n// Quantiles 0 %, 1 %, … 100 %, in ns.\n"
    for name, row in rows.items():
        text += f"\n/// {row['count']} samples.\npub const {name.upper()}_NS: [i32; 101] = [\n"
        q = [str(v) for v in row["quantiles_ns"]]
        for i in range(0, 101, 10):
            text += "    " + ", ".join(q[i : i + 10]) + ",\n"
        text += "];\n"
    return text


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--scale", type=int, default=1, choices=range(1, 11), metavar="N")
    args = args.parse_args()
    out = toolkit.out_dir()
    program = toolkit.build("leads.c", os.path.join(tempfile.mkdtemp(prefix="leads-"), "leads"))
    rows, said = measure(program, "spin", args.scale)
    machine = next((line for line in said if "driver API" in line), "?")
    blocking, _ = measure(program, "block", args.scale)
    for name, row in blocking.items():
        if "sync_return" in name or name.endswith("pageable_4b_return_after_end"):
            rows["block_" + name] = row

    with open(f"{out}/leads.rs", "w") as f:
        f.write(rust(rows, machine))
    with open(f"{out}/leads.json", "w") as f:
        json.dump({"machine": machine, "distributions": rows}, f)
    print(machine)
    print(f"{'ns':42}{'count':>7}{'min':>9}{'p10':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>10}")
    for name, row in rows.items():
        q = row["quantiles_ns"]
        print(f"{name:42}{row['count']:7}" + "".join(f"{q[i]:9}" for i in (0, 10, 50, 90, 99)) + f"{q[100]:10}")


if __name__ == "__main__":
    main()
