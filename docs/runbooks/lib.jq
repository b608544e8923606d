# What the runbooks share: which class a cause belongs to, and how values are written.

# Class and exit status of each cause: by who has to do something about it.
def classes: {
  "host.preempted": "neighbour", "host.irq": "neighbour",
  "host.throttled": "quota",
  "host.oversubscribed": "crowded", "host.affinity": "crowded",
  "host.cpu-wakeup": "machine", "host.reclaim": "machine", "host.numa-balancing": "machine",
  "host.data-loading": "input", "host.disk-read": "input", "host.page-fault": "input", "host.network": "input",
  "host.disk-write": "output",
  "host.sync": "cuda", "host.pageable-copy": "cuda", "host.cuda-memory": "cuda", "host.module-load": "cuda",
  "host.cuda-api": "cuda",
  "host.launch-bound": "code", "host.compute": "code", "host.gc": "code", "host.sleep": "code", "host.spin": "code",
  "host.subprocess": "code",
  "host.lock": "lock", "host.gil": "lock", "host.kernel-lock": "lock",
  "host.peer": "peer",
  "gpu.dependency": "device", "gpu.copy-engine": "device", "gpu.other-process": "device", "gpu.host-callback": "device",
  "gpu.unified-memory": "device", "gpu.launch-latency": "device",
  "host.no-demand": "demand",
  "host.stopped": "held", "host.observer": "held",
  "host.other": "cannot-tell", "unknown": "cannot-tell", "unknown.measurement": "cannot-tell"
};

def statuses: {
  "fine": 0, "cannot-tell": 10, "neighbour": 11, "quota": 12, "crowded": 13, "machine": 14, "input": 15, "output": 16,
  "cuda": 17, "code": 18, "lock": 19, "peer": 20, "device": 21, "demand": 22, "held": 23, "work": 30, "mixed": 31, "gate": 32
};

# A newer gdiag may know more causes.
def class: classes[.] // "cannot-tell";

# Names are data: nothing in them moves the cursor or begins a line of its own.
def clean:
  if . == null then "-"
  else tostring | explode
    | map(if . < 32 or (. >= 127 and . < 160) or . == 1564 or (. >= 8203 and . <= 8207) or (. >= 8232 and . <= 8238)
        or (. >= 8288 and . <= 8303) or . == 65279 then 63 else . end)
    | implode
  end;

def tenths: . * 10 + 0.5 | floor | "\(. / 10 | floor).\(. % 10)";
def percent: if . == null then "-" else "\(. * 100 | tenths) %" end;
def length_of_time:
  if . == null then "-"
  elif . >= 999950000 then "\(. / 1e9 | tenths) s"
  elif . >= 999950 then "\(. / 1e6 | tenths) ms"
  else "\(. / 1e3 | tenths) us" end;

def verdict(class; text): "verdict: \(statuses[class]) \(class): \(text)";

# Of {pid, comm}, which may be unknown.
def who: if .pid == null then "-" else "\(.comm | clean) \(.pid)" end;
def blamed: who + if .what == "" then "" else ": \(.what | clean)" end;

# Threads of a process that did the same are one line.
def together:
  group_by([.pid, .comm, .what]) | map(.[0] + {ns: (map(.ns) | add)}) | sort_by(-.ns);

# Where it was in the program, in the longest of these parts of gaps that has a stack: Python, if there is any.
def where:
  map(select(.stack != [])) | max_by(.end_ns - .start_ns) | select(. != null) | .stack
  | map(select(test("\\.py:[0-9]+\\)$"))) as $python
  # Frames of the kernel come first, down to its entry.
  | ([range(length) as $n | select(.[$n] | . == "entry_SYSCALL_64_after_hwframe" or . == "el0t_64_sync") | $n] | max // -1) as $entry
  | (if $python != [] then $python elif $entry + 1 < length then .[$entry + 1:] else . end)[:3]
  | map(clean) | join(" < ");

# Of a GPU with idle time.
def cause_lines:
  . as $gpu
  | (.causes[0] | .id as $id
    | "cause: \(.id) \(.ns | length_of_time), \(.share | percent) of idle, \(.gaps) gaps",
      (.by | together[:3][] | "who: \(blamed), \(.ns | length_of_time)"),
      ([$gpu.gaps[].parts[] | select(.cause == $id)] | where | "where: \(.)"),
      (select(.fix != "") | "fix: \(.fix)")),
    (.causes[1:4][] | select(.share >= 0.05)
      | "also: \(.id) \(.share | percent) of idle\(if .by == [] then "" else ", " + (.by[0] | blamed) end)");

def lost: .quality | .bpf_lost + .shim_lost + .cupti_lost;

# Why a report cannot be trusted to tell; empty when it can.
def why_not:
  if lost > 0 then "\(lost) events were lost; record again, or for a shorter time"
  elif .gpus == [] then "nothing is known of a GPU"
  elif all(.gpus[]; .window_ns == 0) then "no GPU operation began or ended in that time: nothing was launched, or one ran all along"
  elif any(.gpus[]; .idle_ns == null) then "how long the GPU was idle is not known"
  else empty end;

# Of gdiag sched --json: what the threads of a target did, those first that matter.
def thread_lines:
  (.end_ns - .start_ns) as $length
  | select($length > 0)
  | [.threads[] | select((.target or .dispatcher) and (.comm | startswith("gdiag-") | not) and .off != null)]
  | sort_by([(.dispatcher | not), .tid != .pid, -.run_ns])[:6][]
  | "thread: \(.comm | clean) \(.tid): ran \(.run_ns / $length | percent)" +
    ([.off[] | select(.ns * 100 >= $length)] | sort_by(-.ns)[:2] | map(", \(.reason) \(.ns / $length | percent)") | add // "");

def warnings: .quality.warnings[] | "warning: \(clean)";

def gpu_line:
  if .window_ns == 0 then "gpu: \(.index) \(.name | clean): not used"
  else "gpu: \(.index) \(.name | clean): idle \(if .idle_ns == null then "-" else .idle_ns / .window_ns | percent end) of \(.window_ns | length_of_time), \(.idle_explained | percent) of that explained" end;
