#!/usr/bin/env python3
"""Prints the crates that are part of gdiag with their licences, and the texts of these."""

import json
import os
import re
import subprocess

CARGO = [os.environ.get("CARGO", "cargo")]
LICENCE_FILE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|UNLICENSE)([-._].*)?", re.IGNORECASE)


def cargo(*arguments):
    return subprocess.run([*CARGO, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def texts(directory):
    for where, directories, files in os.walk(directory):
        directories.sort()
        for name in sorted(filter(LICENCE_FILE.fullmatch, files)):
            with open(os.path.join(where, name), encoding="utf-8", errors="replace") as file:
                yield file.read().strip() + "\n"


def main():
    tree = cargo("tree", "--locked", "--offline", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "-p", "gdiag")
    linked = {tuple(line.split()[:2]) for line in tree.splitlines()}
    packages = json.loads(cargo("metadata", "--locked", "--offline", "--format-version", "1"))["packages"]
    crates = [p for p in packages if (p["name"], "v" + p["version"]) in linked and p["source"]]
    crates.sort(key=lambda p: (p["name"], p["version"]))

    print("gdiag contains these Rust crates (https://crates.io/crates/NAME):\n")
    users = {}
    for crate in crates:
        print(f"  {crate['name']} {crate['version']}: {crate['license'] or 'see its licence file'}")
        for text in texts(os.path.dirname(crate["manifest_path"])):
            users.setdefault(text, dict.fromkeys([crate["name"]]))[crate["name"]] = None
    for text, names in users.items():
        print("\n" + "=" * 80 + "\nOf " + ", ".join(names) + ":\n\n" + text, end="")


main()
