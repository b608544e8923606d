"""A program on a pseudo-terminal, and what its screen shows: enough of a terminal for what gdiag sends."""

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading

SEQUENCE = re.compile(r"\x1b\[([?>=]?)([0-9;]*)([ -/]*[@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_78=>c]|\x1b[()].")


class Screen:
    """Cells of one column each."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.row = self.column = 0
        self.rest = ""
        self.other = False  # the other screen, which full-screen programs draw on
        self.clear()

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]

    def feed(self, text):
        text = self.rest + text
        self.rest, at = "", 0
        while at < len(text):
            char = text[at]
            if char == "\x1b":
                found = SEQUENCE.match(text, at)
                if not found:
                    if len(text) - at < 64:  # the rest of it is still to come
                        self.rest = text[at:]
                        return
                    at += 1
                    continue
                if found[3]:
                    self.control(found[1], found[2], found[3])
                at = found.end()
                continue
            at += 1
            if char == "\r":
                self.column = 0
            elif char == "\n":
                self.row = min(self.row + 1, self.rows - 1)
            elif char == "\b":
                self.column = max(self.column - 1, 0)
            elif char >= " ":
                if self.column < self.columns:
                    self.cells[self.row][self.column] = char
                self.column += 1

    def control(self, private, numbers, final):
        values = [int(number or 0) for number in numbers.split(";")]
        count = max(values[0], 1)
        if private:
            if 1049 in values and final in "hl":
                self.other = final == "h"
                self.clear()
        elif final in "Hf":
            self.row = min(count, self.rows) - 1
            self.column = min(max(values[1] if len(values) > 1 else 1, 1), self.columns) - 1
        elif final == "G":
            self.column = min(count, self.columns) - 1
        elif final == "d":
            self.row = min(count, self.rows) - 1
        elif final == "C":
            self.column = min(self.column + count, self.columns - 1)
        elif final == "D":
            self.column = max(self.column - count, 0)
        elif final == "A":
            self.row = max(self.row - count, 0)
        elif final == "B":
            self.row = min(self.row + count, self.rows - 1)
        elif final == "J" and values[0] in (2, 3):
            self.clear()
        elif final == "J":
            self.cells[self.row][self.column:] = [" "] * max(self.columns - self.column, 0)
            self.cells[self.row + 1:] = [[" "] * self.columns for _ in range(self.rows - self.row - 1)]
        elif final == "K":
            first, last = {1: (0, self.column + 1), 2: (0, self.columns)}.get(values[0], (self.column, self.columns))
            self.cells[self.row][first:last] = [" "] * (last - first)
        elif final == "X":
            last = min(self.column + count, self.columns)
            self.cells[self.row][self.column:last] = [" "] * (last - self.column)

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells).rstrip() + "\n"


class OnTerminal:
    """`start` is Popen, or like it; `raw` gets all that the program writes."""

    def __init__(self, start, command, columns, rows, raw=None, **options):
        self.screen, self.lock = Screen(columns, rows), threading.Lock()
        self.bytes = 0
        self.raw = open(raw, "wb") if raw else None
        self.own, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        env.pop("NO_COLOR", None)

        def take():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        options = {"stdin": other, "stdout": other, "stderr": other, **options}
        self.process = start(command, env=env, preexec_fn=take, **options)
        os.close(other)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        """As a terminal does: at once."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(self.own, 65536)
            except OSError:
                data = b""
            if not data:
                return
            if self.raw:
                self.raw.write(data)
            with self.lock:
                self.bytes += len(data)
                self.screen.feed(decoder.decode(data))

    def press(self, keys):
        os.write(self.own, keys.encode())

    def text(self):
        with self.lock:
            return self.screen.text()

    def is_up(self):
        with self.lock:
            return self.screen.other

    def wait(self, seconds):
        """Its exit status, or None."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self.reader.join(2)
        if self.raw:
            self.raw.close()
        os.close(self.own)
        return status
