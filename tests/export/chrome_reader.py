"""Reads trace events as JSON, checks what holds of every such file, and prints it as perfetto_reader.py does.

    chrome_reader.py FILE

Times become nanoseconds again, without a double in between. Anything wrong is an AssertionError.
"""

import json
import sys
from collections import defaultdict
from decimal import Decimal


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys), keys
    return dict(pairs)


def nanos(micros):
    ns = Decimal(micros) * 1000
    assert ns == int(ns) and ns >= 0, micros
    return int(ns)


def nest(slices, row):
    """Slices of a row lie within one another, or apart."""
    open = []
    for s in sorted(slices, key=lambda s: (s["start"], -s["end"])):
        while open and open[-1] <= s["start"]:
            open.pop()
        assert not open or s["end"] <= open[-1], f"{s['name']} outlasts what it is in, on {row}"
        s["depth"] = len(open)
        open.append(s["end"])


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        file = json.load(f, parse_float=Decimal, object_pairs_hook=no_duplicates)
    assert file["displayTimeUnit"] == "ns"
    start = file["otherData"]["start_ns"]
    names, rows = {}, {}
    slices, instants, ends = defaultdict(list), [], defaultdict(list)
    for e in file["traceEvents"]:
        row = (e["pid"], e["tid"])
        if e["ph"] == "M":
            if e["name"] == "process_name":
                assert e["pid"] not in names
                names[e["pid"]] = e["args"]["name"]
            elif e["name"] == "thread_name":
                assert row not in rows, row
                rows[row] = e["args"]["name"]
            continue
        at = start + nanos(e["ts"])
        if e["ph"] in "sf":
            assert e["ph"] == "s" or e["bp"] == "e"
            ends[(e["cat"], e["id"])].append((e["ph"], row, at))
            continue
        s = {
            "row": row,
            "name": e["name"],
            "cat": e["cat"],
            "start": at,
            "end": at + nanos(e.get("dur", 0)),
            "args": e.get("args", {}),
        }
        if e["ph"] == "X":
            slices[row].append(s)
        else:
            assert e["ph"] == "i" and e["s"] == "t"
            instants.append(s)
    for row, of_row in slices.items():
        nest(of_row, row)
    all_slices = [s for of_row in slices.values() for s in of_row]
    for s in all_slices + instants:
        pid, _ = s["row"]
        assert pid in names and s["row"] in rows, s
        s["track"] = [names[pid], rows[s["row"]]]
        del s["row"]
    flows = defaultdict(int)
    for (cat, id), of_flow in ends.items():
        begins = [end for end in of_flow if end[0] == "s"]
        assert len(begins) == 1 and len(of_flow) >= 2, (cat, id)
        for _, row, at in of_flow:
            # A viewer draws an arrow between slices only.
            assert any(s["start"] <= at <= s["end"] for s in slices[row]), (cat, id, row)
        flows[cat] += 1
    json.dump(
        {
            "slices": all_slices,
            "instants": instants,
            "flows": flows,
            "other": file["otherData"],
        },
        sys.stdout,
        default=str,
    )


main()
