#!/usr/bin/env python3
"""What probes on the CUDA driver add to a launch: `gdiag record --no-inject` beside bpftrace with a probe at the begin
and one at the return of the same function.

  driver.py [ROUNDS] [--launches N] [--json FILE]       GDIAG=path/to/gdiag (default: target/release/gdiag)

One job, on the simulated GPU (sim) and on a driver whose functions begin as NVIDIA's do (push; tests/bench/driver.c): a
kernel steps through an instruction that it does not know, which takes several microseconds. It launches 100 times N times
(the least counts: on a busy machine most are interrupted) without a tool, and with each tool, in random order. Columns: ns a launch; ns added, as the difference from the
run without in the same round. Medians of the rounds, and their range.

Needs root and `make simgpu`; bpftrace is left out where it is not installed.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
GDIAG = os.environ.get("GDIAG", os.path.join(ROOT, "target/release/gdiag"))
SIMGPU = os.environ.get("GDIAG_SIMGPU", os.path.join(ROOT, "target/simgpu"))
TMP = tempfile.mkdtemp(prefix="driver-")
DRIVERS = {"sim": os.path.realpath(SIMGPU), "push": TMP}

# As gdiag does it: when a thread began, and at the end a record of 40 bytes.
BPFTRACE = """
uprobe:%s:cuLaunchKernel /pid == %d/ { @begin[tid] = nsecs; }
uretprobe:%s:cuLaunchKernel /pid == %d && @begin[tid]/ {
    printf("%%d %%llu %%llu %%d\\n", tid, @begin[tid], nsecs, retval); delete(@begin[tid]); }
"""


class Job:
    def __init__(self, driver):
        self.libcuda = os.path.join(DRIVERS[driver], "libcuda.so.1")
        env = {k: v for k, v in os.environ.items() if k != "CUDA_INJECTION64_PATH"}
        env["LD_LIBRARY_PATH"] = DRIVERS[driver]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([TMP + "/calls"], stdin=pipe, stdout=pipe, env=env, text=True)
        assert self.line() == "ready"

    def line(self):
        return self.process.stdout.readline().strip()

    def cost(self, launches):
        self.process.stdin.write(f"cost {launches}\n")
        self.process.stdin.flush()
        cost = float(self.line())
        assert self.line() == "done"
        return cost

    def is_probed(self):
        """By the breakpoint at the function's begin."""
        with open(f"/proc/{self.process.pid}/maps") as maps:
            base = next(int(line.split("-")[0], 16) for line in maps if "libcuda.so" in line)
        symbols = subprocess.run(["nm", "-D", self.libcuda], capture_output=True, text=True, check=True).stdout
        address = next(int(s.split()[0], 16) for s in symbols.splitlines() if s.endswith(" cuLaunchKernel"))
        with open(f"/proc/{self.process.pid}/mem", "rb") as memory:
            memory.seek(base + address)
            now = memory.read(1)
            # Asked for once before there are probes.
            self.plain = getattr(self, "plain", now)
            return now != self.plain

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def start(tool, job):
    pid, libcuda = job.process.pid, job.libcuda
    if tool == "gdiag":
        command = [GDIAG, "record", "-q", "--no-inject", "--no-stacks", "-p", str(pid), "-o", TMP + "/gdiag.data"]
    else:
        command = ["bpftrace", "-e", BPFTRACE % (libcuda, pid, libcuda, pid)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--json")
    args = parser.parse_args()
    sources = [os.path.join(HERE, "../programs", name) for name in ("calls/calls.c", "gpuload/gpu.c")]
    subprocess.run(["cc", "-O2", "-pthread", "-o", TMP + "/calls", *sources, "-ldl"], check=True)
    stub = [os.path.join(HERE, "driver.c"), "-fno-omit-frame-pointer", "-fcf-protection=none"]
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", TMP + "/libcuda.so.1", *stub], check=True)
    tools = ["gdiag"] + (["bpftrace"] if shutil.which("bpftrace") else [])
    pairs = [(driver, tool) for driver in DRIVERS for tool in tools]
    runs = []
    for _ in range(args.rounds):
        for driver, tool in random.sample(pairs, len(pairs)):
            job = Job(driver)
            assert not job.is_probed()
            bare = job.cost(args.launches)
            process = start(tool, job)
            deadline = time.monotonic() + 60
            while not job.is_probed():
                assert process.poll() is None and time.monotonic() < deadline, f"{tool} puts no probe in"
                time.sleep(0.05)
            # The others follow.
            time.sleep(1)
            with_tool = job.cost(args.launches)
            process.send_signal(2)
            process.wait()
            job.end()
            runs.append({"driver": driver, "tool": tool, "bare_ns": bare, "with_ns": with_tool})
    print(f"{'driver':<8} {'tool':<10} {'bare':>8} {'with':>8} {'added ns a launch (median, range)':>36}")
    for driver, tool in pairs:
        mine = [run for run in runs if (run["driver"], run["tool"]) == (driver, tool)]
        added = sorted(run["with_ns"] - run["bare_ns"] for run in mine)
        bare = statistics.median(run["bare_ns"] for run in mine)
        with_tool = statistics.median(run["with_ns"] for run in mine)
        text = f"{statistics.median(added):.0f} ({added[0]:.0f} to {added[-1]:.0f})"
        print(f"{driver:<8} {tool:<10} {bare:>8.0f} {with_tool:>8.0f} {text:>36}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(runs, file, indent=1)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
