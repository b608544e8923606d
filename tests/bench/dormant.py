#!/usr/bin/env python3
"""What the shim costs a program that is not being recorded, on the simulated GPU: time and memory.

  dormant.py [ROUNDS]      GDIAG=path/to/gdiag (default: target/release/gdiag), after `make simgpu`

Processes launch empty kernels by turns, a fifth of a second each, in random order: bare, with the shim asleep, and
with a shim that was put to use by one recording and sleeps again. Of each kind there are four, because processes
of one kind differ by themselves. A launch of the simulated driver takes its
least (GDIAG_SIM_LAUNCH_NS=0), so that any cost of the shim shows as large as it can. Printed: ns of CPU time per launch, the median of the rounds;
ratio to the bare turn of the same round, its median and quartiles. Then the memory of the recorded process: what of it
is the shim's shared memory and its buffers, before the recording, at most during it, and after.

Needs root.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, "../../target")
GDIAG = os.environ.get("GDIAG", TARGET + "/release/gdiag")
TMP = tempfile.mkdtemp(prefix="dormant-")
TURN_MS = 200
OF_A_KIND = 4


class Program:
    def __init__(self, shim=None):
        env = dict(os.environ, LD_LIBRARY_PATH=TARGET + "/simgpu", GDIAG_SIM_LAUNCH_NS="0")
        env.pop("CUDA_INJECTION64_PATH", None)
        if shim:
            env["CUDA_INJECTION64_PATH"] = shim
        self.process = subprocess.Popen([TMP + "/launches"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.launch(50)  # CUDA has begun, and the caches are warm.

    def ask(self, ms):
        self.process.stdin.write(f"{ms}\n")
        self.process.stdin.flush()

    def answer(self):
        return float(self.process.stdout.readline())

    def launch(self, ms):
        self.ask(ms)
        return self.answer()

    def memory(self):
        """KiB in memory: the shared ring, and the 64 MiB from which CUPTI's buffers are taken."""
        ring = pool = 0
        part = None
        with open(f"/proc/{self.process.pid}/smaps") as smaps:
            for line in smaps:
                words = line.split()
                if "-" in words[0] and not words[0].endswith(":"):
                    start, end = (int(at, 16) for at in words[0].split("-"))
                    ours = "/memfd:gdiag-shim" in line
                    large = len(words) == 5 and words[1] == "rw-p" and end - start >= 64 << 20
                    part = "ring" if ours else "pool" if large else None
                elif words[0] == "Rss:" and part == "ring":
                    ring += int(words[1])
                elif words[0] == "Rss:" and part == "pool":
                    pool += int(words[1])
        return ring, pool

    def whole(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    subprocess.run(["cc", "-O2", "-o", TMP + "/launches", HERE + "/launches.c", "-ldl"], check=True)
    installed = subprocess.run([GDIAG, "shim", "install", TMP], check=True, capture_output=True, text=True)
    shim = installed.stdout.strip().split("=", 1)[1]

    kinds = {"bare": None, "dormant": shim, "recorded before": shim}
    programs = {name: [Program(path) for _ in range(OF_A_KIND)] for name, path in kinds.items()}
    recorded = programs["recorded before"]
    memory = {"before": (*recorded[0].memory(), recorded[0].whole())}
    pids = ",".join(str(program.process.pid) for program in recorded)
    recorder = subprocess.Popen([GDIAG, "record", "-q", "-o", TMP + "/data", "-p", pids, "--", "sleep", "3"])
    memory["during"] = memory["before"]
    while recorder.poll() is None:
        for program in recorded:
            program.ask(TURN_MS)
        for program in recorded:
            program.answer()
        memory["during"] = max(memory["during"], (*recorded[0].memory(), recorded[0].whole()))
    if recorder.returncode:
        sys.exit(f"dormant.py: gdiag record ended with {recorder.returncode}")
    time.sleep(1)
    memory["after"] = (*recorded[0].memory(), recorded[0].whole())

    ns = {name: [] for name in programs}
    for turn in range(rounds):
        for name in random.sample(list(programs), len(programs)):
            ns[name].append(programs[name][turn % OF_A_KIND].launch(TURN_MS))
    print(f"{'':18}{'ns a launch':>12}{'ratio':>8}{'quartiles':>16}")
    for name, values in ns.items():
        ratios = [value / bare for value, bare in zip(values, ns["bare"])]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{name:18}{statistics.median(values):12.1f}{middle:8.3f}{f'{low:.3f} to {high:.3f}':>16}")
    print(f"\n{'KiB in memory':18}{'ring':>8}{'buffers':>9}{'process':>9}")
    for name, (ring, pool, whole) in memory.items():
        print(f"{name:18}{ring:8}{pool:9}{whole:9}")
    for program in sum(programs.values(), []):
        program.process.stdin.close()
        program.process.wait()


if __name__ == "__main__":
    main()
