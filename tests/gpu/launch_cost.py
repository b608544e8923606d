#!/usr/bin/env python3
"""What each tracer adds to a launch: bare, a counting CUPTI tool, gdiag, torch.profiler and nsys in one run.

  launch_cost.py [--rounds 5] [--launches 300000] [--torch-calls 40000] [--loads free,pinned,torch] [--tools NAME,…]

GDIAG names the binary (default: target/release/gdiag). Every round runs every tool once, in random order; what a tool
adds is the median over the rounds of its difference to the bare run of the same round. Three loads:

  free    one thread launches empty kernels through the driver API; then a graph of 100 empty nodes is replayed
  pinned  the same, with the whole process on one CPU, where every tracer's threads compete with the launches
  torch   an eager add_ in a Python loop

The counting tool enables the same record kinds and the same calls as gdiag's shim (read from its table of calls),
into recycled 1 MiB buffers, and only counts records. Raw figures go to $OUT/launch_cost.json (or target/gpu).
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import toolkit
from toolkit import say

REPO = os.path.abspath(os.path.join(toolkit.HERE, "../.."))
GDIAG = os.environ.get("GDIAG", os.path.join(REPO, "target/release/gdiag"))


def recorded_calls():
    """The calls that the shim leaves enabled, from the one table that defines them."""
    text = open(os.path.join(REPO, "cupti-shim/layout/src/api.rs")).read()
    words = []
    for domain in ("DRIVER", "RUNTIME"):
        table = re.search(r"const %s: &\[Row\] = &\[(.*?)\n\];" % domain, text, re.S)
        ids = re.findall(r"&\[([\d,\s]+)\]", table.group(1))
        words += [domain.lower()] + [i for row in ids for i in re.findall(r"\d+", row)]
    return " ".join(words)


def find_nsys():
    found = shutil.which("nsys") or next(iter(sorted(glob.glob("/opt/nvidia/nsight-*/**/nsys", recursive=True))), None)
    return found if found and os.access(found, os.X_OK) else None


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                pass
    return None


def run(command, env, log, timeout=60):
    """The JSON that the load printed, or None; what was said goes to the log."""
    t0 = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, env={**os.environ, **env})
    except subprocess.TimeoutExpired:
        log.write(f"$ {' '.join(command)}\nno end after {timeout} s\n")
        return None
    result = last_json(done.stdout)
    log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}status {done.returncode}, {time.monotonic() - t0:.1f} s\n\n")
    return result if done.returncode == 0 or result else None


def losses(data, log):
    """What gdiag says about its own recording."""
    done = subprocess.run([GDIAG, "report", "--json", "-i", data], capture_output=True, text=True, errors="replace")
    try:
        quality = json.loads(done.stdout)["quality"]
    except (ValueError, KeyError):
        log.write(f"report of {data} failed: {done.stderr}\n")
        return None
    return {k: quality.get(k) for k in ("bpf_lost", "shim_lost", "cupti_lost", "invalid_gpu_records", "gpu_coverage")}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--launches", type=int, default=300000)
    args.add_argument("--torch-calls", type=int, default=40000)
    args.add_argument("--loads", default="free,pinned,torch")
    args.add_argument("--tools", help="only these, and the bare run")
    args.add_argument("--seconds", type=int, default=400, help="start nothing new after this long")
    args = args.parse_args()
    if not os.access(GDIAG, os.X_OK):
        sys.exit(f"{GDIAG}: no such program; set GDIAG")
    out = toolkit.out_dir()
    tmp = tempfile.mkdtemp(prefix="launch-cost-")
    loop = toolkit.build("launchloop.c", tmp + "/launchloop", cupti=False)
    counter = toolkit.build("counter.c", tmp + "/counter.so", shared=True)
    counting = {"CUDA_INJECTION64_PATH": counter, "COUNTER_CALLS": recorded_calls()}
    installed = subprocess.run([GDIAG, "shim", "install", tmp + "/shim"], capture_output=True, text=True)
    shims = glob.glob(tmp + "/shim/*.so")
    if not shims:
        say(f"gdiag shim install failed: {installed.stderr.strip()}; no 'dormant' rows")
    nsys = find_nsys()

    data = tmp + "/loop.data"
    record = [GDIAG, "record", "-o", data, "--"]
    free = [loop, "-g", "2000", str(args.launches)]
    pinned = [loop, "-c", str((os.cpu_count() or 2) // 2), str(args.launches)]
    torch = [sys.executable, os.path.join(toolkit.HERE, "torch_loop.py"), str(args.torch_calls)]
    trace = [nsys, "profile", "-t", "cuda", "-s", "none", "--cpuctxsw=none", "--force-overwrite=true", "-o", tmp + "/nsys"] if nsys else []
    jobs = []
    for load, command in (("free", free), ("pinned", pinned), ("torch", torch)):
        jobs.append((load, "bare", command, {}))
        jobs.append((load, "counter", command, counting))
        jobs.append((load, "gdiag", record + command, {}))
        if shims:
            jobs.append((load, "dormant", command, {"CUDA_INJECTION64_PATH": shims[0]}))
        if nsys and load == "free":
            jobs.append((load, "nsys", trace + command, {}))
    jobs.append(("torch", "profiler cuda", torch + ["cuda"], {}))
    jobs.append(("torch", "profiler cpu+cuda", torch + ["both"], {}))

    tools = args.tools and {"bare", *args.tools.split(",")}
    jobs = [j for j in jobs if j[0] in args.loads.split(",") and (not tools or j[1] in tools)]

    rows, quality, t0 = {}, [], time.monotonic()
    with open(out + "/launch_cost.log", "w") as log:
        for r in range(args.rounds):
            random.shuffle(jobs)
            done = {}
            for job in list(jobs):
                load, tool, command, env = job
                if time.monotonic() - t0 > args.seconds:
                    break
                result = run(command, env, log)
                log.flush()
                if result is None:
                    say(f"round {r + 1}: {load} {tool} did not run; see launch_cost.log")
                    if (load, tool) not in rows:
                        jobs.remove(job)
                    continue
                done[load, tool] = result
                if tool == "gdiag":
                    quality.append((load, losses(data, log)))
            for (load, tool), result in done.items():
                bare = done.get((load, "bare"))
                if bare:
                    rows.setdefault((load, tool), []).append((result, bare))
            say(f"round {r + 1}: {time.monotonic() - t0:.0f} s")
    with open(out + "/launch_cost.json", "w") as f:
        json.dump({"rows": [[load, tool, pairs] for (load, tool), pairs in rows.items()], "gdiag_quality": quality}, f)

    def median(pairs, f):
        return statistics.median(f(a, b) for a, b in pairs)

    print(f"\n{'load':8}{'tool':20}{'ns':>8}{'added':>8}{'/counter':>9}{'median':>8}{'added':>7}{'p99':>8}{'p99.99':>9}{'max us':>9}{'>100us':>7}{'node ns':>9}{'added':>7}  runs")
    for load in ("free", "pinned", "torch"):
        mine = {tool: pairs for (l, tool), pairs in rows.items() if l == load}
        added = {tool: median(pairs, lambda a, b: a["mean"] - b["mean"]) for tool, pairs in mine.items()}
        for tool in sorted(mine, key=added.get):
            pairs = mine[tool]
            counted = added.get("counter") or float("nan")
            line = f"{load:8}{tool:20}{median(pairs, lambda a, b: a['mean']):8.0f}{added[tool]:8.0f}{added[tool] / counted:9.2f}"
            line += f"{median(pairs, lambda a, b: a['p50']):8.0f}{median(pairs, lambda a, b: a['p50'] - b['p50']):7.0f}"
            if load != "torch":
                line += "".join(f"{median(pairs, lambda a, b, k=k: a[k]):{w}.0f}" for k, w in (("p99", 8), ("p99.99", 9)))
                line += f"{max(a['max'] for a, _ in pairs) / 1000:9.0f}{sum(a['slow'] for a, _ in pairs):7}"
            else:
                line += " " * 33
            if load == "free":
                line += f"{median(pairs, lambda a, b: a['node']):9.0f}{median(pairs, lambda a, b: a['node'] - b['node']):7.0f}"
            else:
                line += " " * 16
            print(line + f"  {len(pairs)}")
    print("The first 'added' and '/counter' are of the mean per launch; then its median, of 256 calls together for torch; max and >100us (beyond the run's median) over all runs.")
    for load, q in quality:
        print(f"gdiag's own recording of {load}: {q}")


if __name__ == "__main__":
    main()
