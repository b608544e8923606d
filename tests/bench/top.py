#!/usr/bin/env python3
"""What `gdiag top` takes of a CPU, and of memory, at about 100,000 events a second.

A launch loop on the simulated GPU makes the events. `top` draws on a terminal of 120x40 that is read, with all that
it has on; beside it, in turn, `top --batch` and `record` of the same. Run it as root, after `make all simgpu`:

    python3 tests/bench/top.py [SECONDS]
"""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GDIAG = os.environ.get("GDIAG", f"{ROOT}/target/release/gdiag")
SIM = f"{ROOT}/target/simgpu"
ENV = dict(os.environ, LD_LIBRARY_PATH=SIM, LANG="C.UTF-8", TERM="xterm-256color")
TICK = os.sysconf("SC_CLK_TCK")
SETTLE = 8


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def memory_mib(pid):
    return int(open(f"/proc/{pid}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def on_terminal(command):
    """The command on a terminal, and a list of what it writes."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, env=ENV,
                               start_new_session=True)
    os.close(slave)
    seen = []

    def read():
        while True:
            try:
                seen.append(os.read(master, 65536))
            except OSError:
                return
    threading.Thread(target=read, daemon=True).start()
    return process, seen


def in_pipe(command):
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env=ENV)
    return process, []


def rate(text):
    """Events a second, as the header says: `104 k events/s`."""
    found = re.findall(rb"([\d.]+) ?(k|M)? events/s", text)
    if not found:
        return None
    number, unit = found[-1]
    return float(number) * {b"": 1, b"k": 1e3, b"M": 1e6}[unit]


def measure(name, start, command, seconds):
    load = subprocess.Popen([f"{SIM}/gpuload", "--seconds", str(seconds + SETTLE + 20), "--kernels", "20",
                             "--kernel-us", "18", "--host-us", "10"], env=ENV, stdout=subprocess.DEVNULL)
    time.sleep(1)
    process, seen = start([GDIAG, *command, "-p", str(load.pid), "-d", f"{seconds + SETTLE + 3}s"])
    time.sleep(SETTLE)
    begin, first, memory = time.monotonic(), cpu_seconds(process.pid), [memory_mib(process.pid)]
    while time.monotonic() < begin + seconds:
        time.sleep(1)
        memory.append(memory_mib(process.pid))
    took = cpu_seconds(process.pid) - first
    share = took / (time.monotonic() - begin)
    tail = b"".join(seen)
    behind = b"behind" in tail
    _, err = process.communicate(timeout=30)
    load.kill()
    load.wait()
    text = f"{name:14}{share * 100:8.2f} %{memory[0]:10.0f}{max(memory):8.0f}{memory[-1]:8.0f}"
    events = rate(tail)
    text += f"{events:12.0f}" if events else f"{'-':>12}"
    summary = re.findall(rb"([\d,]+) events.*lost ([\d,]+)", err or b"")
    if summary:
        text += f"  {summary[-1][0].decode()} events, {summary[-1][1].decode()} lost"
    print(text + ("  fell behind" if behind else ""), flush=True)


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    print(f"{'':14}{'of a CPU':>10}{'MiB first':>10}{'most':>8}{'last':>8}{'events/s':>12}")
    with tempfile.TemporaryDirectory() as scratch:
        measure("top", on_terminal, ["top"], seconds)
        measure("top --batch", in_pipe, ["top", "--batch", "--json"], seconds)
        measure("record", in_pipe, ["record", "-o", f"{scratch}/g.data"], seconds)


if __name__ == "__main__":
    main()
