#!/usr/bin/env python3
"""`gdiag top` beside a PyTorch loop: how soon a cause comes and goes, what watching costs, and whether it tells the truth.

  top.py [--only PART[,PART]] [--budget 340] [--rounds 3] [--driver torch|cuda]

GDIAG names the binary (default: target/release/gdiag). Needs root, a GPU, gcc, and a python3 with torch (with --driver cuda
not: then a simulated GPU does, too, with the folder of its libraries as LD_LIBRARY_PATH). Parts:

  hog       a hog on the CPU of the loop, started and stopped: how long until a window names it, and until none does
  cost      steps of the loop without anything, with the screen and with --batch; CPU time of gdiag itself
  nvml      what it tells of the card against nvidia-smi, what a round of questions takes, and the loop with and without
  truth     it finds the loop by itself; its busy share against a recording's; a snapshot that report reads
  screens   every screen, as text, for a person to look at

Writes to $OUT (or target/gpu): attach.log with every command and what it said, attach.json, reports.tar.gz with the
screens, top.raw with all that the last screen was sent. Prints the table last; the exit status is 1 when a row failed.
"""

import argparse
import csv
import glob
import json
import os
import queue
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

from attachlib import GDIAG, SECOND, Bench, Failed, Skip, now, read, say, tables, tail, write_results
from screen import OnTerminal

COLUMNS, ROWS = 120, 40
WINDOW, INTERVAL = 2.0, 0.5
TIMES = 5
# Of what the analysis waits for, and of the machine.
LAG_MOST = 1.5
SMI = shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin")
TICKS = os.sysconf("SC_CLK_TCK")

# As gdiag says it; "GPU idle", 0x1, is no reason.
THROTTLE = {0x2: "application clocks", 0x4: "SW power cap", 0x10: "sync boost", 0x20: "SW thermal slowdown", 0x40: "HW thermal slowdown",
            0x80: "HW power brake", 0x100: "display clocks"}


def seconds(ns):
    return f"{ns / 1e9:.2f} s"


def spread(values, form=seconds):
    return f"median {form(statistics.median(values))}, most {form(max(values))} of {len(values)}" if values else "none"


def cpu_ns(pid):
    """CPU time of a process with all its threads."""
    fields = read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * SECOND // TICKS


def memory(pid):
    found = re.search(r"VmRSS:\s*(\d+)", read(f"/proc/{pid}/status", ""))
    return int(found[1]) << 10 if found else 0


def busy_share(report):
    """Of the GPU that did most."""
    shares = [gpu["busy_ns"] / gpu["window_ns"] for gpu in report["gpus"] if gpu["busy_ns"] is not None and gpu["window_ns"]]
    return max(shares, default=None)


class Lines:
    """`gdiag top --json`, read as it comes."""

    def __init__(self, bench, *options):
        self.bench, self.said = bench, bench.tmp + "/top.stderr"
        self.command = [GDIAG, "top", "--json", *map(str, options)]
        with open(self.said, "w") as said:
            self.process = bench.popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, text=True, errors="replace")
        self.queue, self.lags = queue.Queue(), []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.queue.put((now(), line))
        self.queue.put((now(), None))

    def next(self, most=15):
        """When a window came, and what it says."""
        try:
            at, line = self.queue.get(timeout=most)
        except queue.Empty:
            raise Failed(f"no window within {most} s: {tail(read(self.said, ''))}") from None
        if line is None:
            raise Failed(f"top ended: {tail(read(self.said, ''))}")
        report = json.loads(line)
        self.lags.append(at - report["recording"]["end_ns"])
        return at, report

    def until(self, condition, most):
        """The first window that is so, of those that come in the next seconds; None when there is none."""
        deadline = time.monotonic() + most
        while time.monotonic() < deadline:
            at, report = self.next()
            if condition(report):
                return at, report
        return None

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            raise Failed("top does not end") from None
        finally:
            self.bench.forget(self.process)
            self.bench.write(self.command, self.process.returncode, "", read(self.said, ""))
        return read(self.said, "")


def causes(report):
    """Of all GPUs, most time first."""
    return sorted((cause for gpu in report["gpus"] for cause in gpu["causes"]), key=lambda cause: -cause["ns"])


def blamed(report, pid):
    """ns for which that process is blamed for having had the CPU."""
    preempted = [cause for cause in causes(report) if cause["id"] == "host.preempted"]
    return sum(by["ns"] for cause in preempted for by in cause["by"] if str(pid) in re.findall(r"\d+", by["what"]))


def comes_first(report, pid):
    first = causes(report)[:1]
    return bool(first) and first[0]["id"] == "host.preempted" and blamed(report, pid) > 0


def pinned_loop(bench):
    cpu = sorted(os.sched_getaffinity(0))[-1]
    return bench.start_loop("--mode", "eager", wrap=["taskset", "-c", cpu]).wait("ready"), cpu


def start_hog(bench, cpu):
    return bench.popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"])


def part_hog(bench):
    loop, cpu = pinned_loop(bench)
    top = Lines(bench, "-w", f"{WINDOW}s", "-I", f"{round(INTERVAL * 1000)}ms", "-p", loop.pid)
    if not top.until(lambda report: busy_share(report), 15):
        raise Failed("no window with a busy GPU")
    full = top.until(lambda report: max((gpu["window_ns"] or 0 for gpu in report["gpus"]), default=0) > 0.9 * WINDOW * SECOND, 4 * WINDOW)
    bench.check("windows are as long as asked for", bool(full), "" if full else "they stay shorter")
    named, first, gone, missed = [], [], [], 0
    begin = now()
    for _ in range(TIMES):
        # At any place between two windows.
        time.sleep(bench.random.uniform(0, INTERVAL))
        hog = start_hog(bench, cpu)
        started = now()
        found = top.until(lambda report: blamed(report, hog.pid) > 0, 8)
        if found:
            named.append(found[0] - started)
            found = found if comes_first(found[1], hog.pid) else top.until(lambda report: comes_first(report, hog.pid), 6)
            if found:
                first.append(found[0] - started)
        bench.forget(hog)
        stopped = now()
        missed += not found
        over = top.until(lambda report: report["recording"]["end_ns"] > stopped and blamed(report, hog.pid) == 0, 10)
        if over:
            gone.append(over[0] - stopped)
    bench.window("with top and hogs", loop, begin, now())
    said = top.stop()
    loop.finish()
    bench.check("named", len(named) == TIMES and max(named) < 2 * SECOND, spread(named))
    bench.check("first cause", not missed and max(first) < 2 * SECOND, f"{spread(first)}; never in {missed} of {TIMES}")
    most = WINDOW + INTERVAL + LAG_MOST
    bench.check("gone", len(gone) == TIMES and max(gone) < most * SECOND, f"{spread(gone)}; a window is {WINDOW} s, a new one comes each {INTERVAL} s")
    bench.check("a window's end to its line", None, spread(top.lags))
    bench.check("nothing to complain about", "lost" not in said, tail(said) or "nothing said")


def rate(loop, length):
    """Steps a second for that long, and the times between them."""
    begin = now()
    time.sleep(length)
    times = [t for t in loop.times() if t >= begin]
    if len(times) < 3:
        raise Failed("the loop makes no steps")
    return (len(times) - 1) * SECOND / (times[-1] - times[0])


class Batch:
    """`gdiag top` that prints what nobody reads."""

    def __init__(self, bench, *options):
        self.bench, self.said = bench, bench.tmp + "/batch.stderr"
        self.command = [GDIAG, "top", *map(str, options)]
        with open(self.said, "w") as said:
            self.process = bench.popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)
        self.bench.forget(self.process)
        said = read(self.said, "")
        self.bench.write(self.command, self.process.returncode, "", said)
        return said


class OnScreen:
    """`gdiag top` on a terminal that somebody looks at."""

    def __init__(self, bench, *options, raw=None):
        self.bench = bench
        self.command = [GDIAG, "top", *map(str, options)]
        self.terminal = OnTerminal(bench.popen, self.command, COLUMNS, ROWS, raw)
        self.process = self.terminal.process
        deadline = time.monotonic() + 20
        while not self.terminal.is_up():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"no screen: {tail(self.terminal.text())}")
            time.sleep(0.02)

    def end(self, most=10):
        self.terminal.press("q")
        status = self.terminal.wait(most)
        self.bench.forget(self.process)
        self.bench.write(self.command, status, self.terminal.text(), "")
        if status is None:
            raise Failed("q does not end it")
        return status


def part_cost(bench):
    idle = OnScreen(bench)
    time.sleep(3)
    begin, before = now(), cpu_ns(idle.process.pid)
    time.sleep(5)
    bench.check("CPU of the screen, nobody uses CUDA", None, f"{(cpu_ns(idle.process.pid) - before) / (now() - begin):.2%} of a core, {memory(idle.process.pid) >> 20} MiB")
    idle.end()

    loop, _ = pinned_loop(bench)
    time.sleep(2)
    started = {"the screen": lambda: OnScreen(bench, "-p", loop.pid), "--batch": lambda: Batch(bench, "--batch", "-w", "2s", "-p", loop.pid)}
    ratios, alone, own, sizes = {}, [], {}, {}
    for _ in range(bench.args.rounds):
        for name, start in started.items():
            quiet = rate(loop, 3)
            top = start()
            time.sleep(2.5)
            begin, before = now(), cpu_ns(top.process.pid)
            watched = rate(loop, 4)
            own.setdefault(name, []).append((cpu_ns(top.process.pid) - before) / (now() - begin))
            sizes[name] = max(sizes.get(name, 0), memory(top.process.pid))
            top.end()
            time.sleep(0.5)
            ratios.setdefault(name, []).append(watched / quiet)
            alone.append(quiet)
    loop.finish()
    bench.check("steps alone", None, f"median {statistics.median(alone):.1f}/s, from {min(alone):.1f} to {max(alone):.1f}")
    for name in started:
        texts = ", ".join(f"{ratio:.3f}" for ratio in ratios[name])
        bench.check(f"steps with {name}", None, f"{texts} of before; median {statistics.median(ratios[name]):.3f}")
        share = statistics.median(own[name])
        bench.check(f"CPU of {name}", None, f"median {share:.2%} of a core, most {max(own[name]):.2%}; {sizes[name] >> 20} MiB")


def nvidia_smi():
    """One row a card, by its uuid."""
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), "/usr/local/nvidia/lib64"]))}
    for reasons in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        fields = ["uuid", "utilization.gpu", "memory.used", "power.draw", "clocks.sm", "temperature.gpu", reasons]
        command = [SMI, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, env=env)
        if done.returncode == 0:
            rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
            return {row[0]: dict(zip(["utilization", "memory", "power", "clock", "temperature", "reasons"], row[1:])) for row in rows}
    raise Failed(f"nvidia-smi: {tail(done.stdout + done.stderr)}")


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def words(bits):
    known = sorted(word for bit, word in THROTTLE.items() if bits & bit)
    return known + (["HW slowdown"] if bits & 0x8 and not bits & 0xc0 else [])


def part_nvml(bench):
    loop, _ = pinned_loop(bench)
    time.sleep(1)
    top = Lines(bench, "-v", "-w", "1s", "-I", "1s", "-p", loop.pid)
    has_smi = SMI is not None
    told, smi = {}, {}
    top.next()
    for _ in range(8):
        _, report = top.next()
        for card in report["nvml"]:
            told.setdefault(card["uuid"], []).append((report["recording"]["end_ns"] - card["at_ns"], card))
        if has_smi:
            for uuid, row in nvidia_smi().items():
                smi.setdefault(uuid, []).append(row)
    said = top.stop()
    cost = next((line for line in said.splitlines() if "NVML" in line), "not told")
    bench.check("a round", "rounds" in cost, cost)
    if not told:
        raise Failed(f"no facts; {cost}")
    bench.check("age of the facts at a window's end", None, spread([age for rows in told.values() for age, _ in rows]))
    busy = next((uuid for uuid, rows in told.items() if any(card["utilization_percent"] for _, card in rows)), next(iter(told)))
    cards = [card for _, card in told[busy]]
    bench.check("the last of them", None, json.dumps(cards[-1])[:600])
    if has_smi:
        compare(bench, cards, smi.get(busy, []))

    # In turn, for what the loop feels of the questions.
    ratios = []
    for turn in range(bench.args.rounds):
        rates = {}
        for options in sorted([(), ("--no-nvml",)], reverse=bool(turn % 2)):
            top = Lines(bench, "-w", "1s", "-p", loop.pid, *options)
            time.sleep(2)
            rates[options] = rate(loop, 4)
            top.stop()
        ratios.append(rates[()] / rates["--no-nvml",])
    loop.finish()
    bench.check("steps with NVML", None, f"{', '.join(f'{ratio:.3f}' for ratio in ratios)} of those without; median {statistics.median(ratios):.3f}")


def compare(bench, cards, rows):
    if not rows:
        return bench.check("against nvidia-smi", False, "it knows no such card")

    def middles(key, column, scale=1.0):
        mine = [card[key] * scale for card in cards if card[key] is not None]
        theirs = [value for value in (number(row[column]) for row in rows) if value is not None]
        return (statistics.median(mine) if mine else None, statistics.median(theirs) if theirs else None)

    for name, pair, most in [
        ("utilisation, %", middles("utilization_percent", "utilization"), 10),
        ("memory, MiB", middles("memory_used_bytes", "memory", 2**-20), 64),
        ("power, W", middles("power_watts", "power"), 30),
        ("SM clock, MHz", middles("sm_clock_mhz", "clock"), 60),
        ("temperature, C", middles("temperature_celsius", "temperature"), 3),
    ]:
        mine, theirs = pair
        same = mine is None and theirs is None or None not in pair and abs(mine - theirs) <= most
        bench.check(name, same, f"{mine}; nvidia-smi {theirs}")
    mine = [sorted(card["throttle"] or []) for card in cards]
    theirs = [sorted(words(int(row["reasons"], 16))) for row in rows if row["reasons"].startswith("0x")]
    common = [reasons for reasons in mine if reasons in theirs]
    bench.check("reasons of low clocks", bool(common) or not theirs, f"{mine[-1]}; nvidia-smi {theirs[-1:]}")


def once(bench, *options):
    done = bench.run([GDIAG, "top", "--once", "--json", *map(str, options)], 40, quiet=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise Failed(f"top --once {' '.join(map(str, options))}: status {done.returncode}: {tail(done.stderr)}") from None


def part_truth(bench):
    loop, _ = pinned_loop(bench)
    time.sleep(1)
    report = once(bench, "-w", "4s")
    found = any(thread["pid"] == loop.pid and thread["launches"] for thread in report["threads"])
    bench.check("finds the loop by itself", found, f"{len(report['gpus'])} GPUs, processes {sorted({t['pid'] for t in report['threads']})[:8]}; the loop is {loop.pid}")
    share = busy_share(report)

    recording = bench.record("truth", "-p", loop.pid, seconds=4, target=loop)
    recorded = busy_share(recording.report)
    known = share is not None and recorded is not None
    bench.check("busy share, 4 s after one another", known and abs(share - recorded) < 0.02, f"top {share}, recording {recorded}")
    replayed = bench.run([GDIAG, "top", "--once", "--json", "-w", "10s", "--speed", "100", "-i", recording.data], 40, quiet=True)
    try:
        replay = json.loads(replayed.stdout)
        share = busy_share(replay)
        bench.check("busy share, replayed", share is not None and abs(share - recorded) < 0.005, f"top -i {share}, report {recorded}")
        mine, theirs = ({cause["id"]: cause["ns"] for cause in causes(r)} for r in (replay, recording.report))
        apart = sum(abs(mine.get(id, 0) - theirs.get(id, 0)) for id in {*mine, *theirs}) / max(sum(theirs.values()), 1)
        bench.check("causes, replayed", apart < 0.02, f"{apart:.2%} of idle time has another; {next(iter(theirs), None)} first")
    except ValueError:
        bench.check("busy share, replayed", False, f"status {replayed.returncode}: {tail(replayed.stderr)}")

    file = bench.tmp + "/snap.data"
    top = OnScreen(bench, "-p", loop.pid, "-o", file)
    time.sleep(4)
    top.terminal.press("w")
    deadline = time.monotonic() + 8
    while not glob.glob(file + "*") and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.5)
    message = [line for line in top.terminal.text().splitlines() if "snap" in line]
    status = top.end()
    bench.check("q", status == 0 and not top.terminal.is_up(), f"status {status}, the first screen {'is not' if top.terminal.is_up() else 'is'} back")
    files = sorted(glob.glob(file + "*"))
    if not files:
        raise Failed("w writes no file")
    read_back = bench.run([GDIAG, "report", "-i", files[0], "--json"], 40, quiet=True)
    try:
        report = json.loads(read_back.stdout)
    except ValueError:
        raise Failed(f"report of a snapshot: status {read_back.returncode}: {tail(read_back.stderr)}") from None
    kernels = sum(kernel["count"] for kernel in report["kernels"])
    length = (report["recording"]["end_ns"] - report["recording"]["start_ns"]) / 1e9
    bench.check("snapshot", kernels > 0 and length > 1, f"{os.path.basename(files[0])}: {length:.1f} s, {kernels} kernels, busy {busy_share(report)}; said: {' '.join(message).strip()[:100]}")
    bench.check("the loop goes on", loop.goes_on(), "")
    loop.finish()


def part_screens(bench):
    loop, cpu = pinned_loop(bench)
    hog = start_hog(bench, cpu)
    top = OnScreen(bench, raw=bench.out + "/top.raw")
    time.sleep(6)
    shown = {}
    for place in range(1, 8):
        top.terminal.press(str(place))
        time.sleep(1.2)
        shown[f"screen-{place}"] = top.terminal.text()
    top.terminal.press("1")
    # What is opened is to stay in the window.
    for name, key, length in [("paused", "p", 1), ("cause", "\r", 1), ("gap", "\r", 1), ("help", "?", 1)]:
        top.terminal.press(key)
        time.sleep(length)
        shown[f"screen-{name}"] = top.terminal.text()
    sent = top.terminal.bytes
    top.terminal.press("\x1b")
    time.sleep(0.5)
    top.end()
    bench.forget(hog)
    loop.finish()
    for name, text in shown.items():
        bench.reports[name + ".txt"] = text
    say(shown["screen-1"])
    different = len(set(shown.values()))
    empty = [name for name, text in shown.items() if len(text.split()) < 5]
    bench.check("screens", not empty, f"{different} different of {len(shown)}, {sent >> 10} KiB sent; empty: {empty or 'none'}")


PARTS = {"hog": part_hog, "cost": part_cost, "nvml": part_nvml, "truth": part_truth, "screens": part_screens}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--only", default="", help="parts")
    args.add_argument("--budget", type=float, default=340, help="seconds for everything")
    args.add_argument("--rounds", type=int, default=3, help="of what is compared in turn")
    args.add_argument("--driver", choices=["torch", "cuda"], default="torch")
    args.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    args = args.parse_args()
    wanted = list(filter(None, args.only.split(","))) or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        sys.exit(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    args.keep = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended
    bench = Bench(args)
    try:
        for name in wanted:
            bench.part = name
            if bench.left() < 30:
                bench.check("time", None, "not run: the time is over")
                continue
            say(f"{name}, {bench.left():.0f} s left")
            try:
                PARTS[name](bench)
            except Skip as why:
                bench.check("skipped", None, str(why))
            except (Failed, OSError, KeyError, ValueError, subprocess.TimeoutExpired) as error:
                bench.check("went on", False, f"{type(error).__name__}: {error}")
            bench.clear()
            write_results(bench)
    finally:
        bench.clear()
        write_results(bench)
        bench.log.write(tables(bench) + "\n")
        bench.log.close()
        say("\n" + tables(bench))
        shutil.rmtree(bench.tmp, ignore_errors=True)
    sys.exit(1 if any(row["pass"] is False for row in bench.rows) else 0)


if __name__ == "__main__":
    main()
