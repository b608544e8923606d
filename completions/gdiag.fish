# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_gdiag_global_optspecs
    string join \n h/help V/version
end

function __fish_gdiag_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_gdiag_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_gdiag_using_subcommand
    set -l cmd (__fish_gdiag_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c gdiag -n "__fish_gdiag_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_needs_command" -s V -l version -d 'Print version'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "top" -d 'Show live why GPUs are idle, and who is to blame'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "record" -d 'Record what GPUs and the host do'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "report" -d 'Explain why the GPUs of a recording were idle'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "diff" -d 'Say what changed from one recording to another'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "flame" -d 'Draw flame graphs: stacks as wide as the time they took'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "sched" -d 'Show what the scheduler did: who ran, who waited for a CPU, why, and who was in the way'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "syscalls" -d 'Show system calls: one by one as they end, or summed up'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "export" -d 'Write a recording in a format of other tools'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "start" -d 'Start the flight recorder: record into memory, where the newest overwrites the oldest'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "stat" -d 'Show whether the flight recorder runs, and what it holds'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "snapshot" -d 'Write what the flight recorder holds to a recording; it goes on'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "stop" -d 'End the flight recorder, and clean up after one that was killed'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "check" -d 'Tell whether this machine can be recorded, and what to do about what is missing'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "shim" -d 'Handle the library that records CUDA inside a program'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s p -l pid -d 'Watch these processes and their children; ends when they do' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s G -l cgroup -d 'Watch the processes of these cgroups and of those below them, and whoever comes into them; ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l container -d 'Watch the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O, Podman or Kubernetes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s i -l input -d 'Play this recording instead of watching' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l speed -d 'With -i: how fast, as a multiple of the time that it took, such as 0.25 or 10' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s w -l window -d 'Show this much of the past, 1s to 300s' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s I -l interval -d 'Time between two updates of the screen, or with --batch between two windows [default: 1s, with --batch the window]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s d -l duration -d 'End after this time, such as 10s or 250ms' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s n -l iterations -d 'With --batch: end after so many windows' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l gpu -d 'Begin with this GPU' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s o -l output -d 'Where snapshots go: FILE.1, FILE.2 and so on' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s F -l freq -d 'Samples a second of where each running thread of the target is; 0 for none' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s a -l all -d 'Watch the whole machine, also when a command is given'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s b -l batch -d 'Print window after window instead of a screen'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l once -d 'Print one window and exit, like --batch -n 1'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l json -d 'Write JSON instead of text (schema gdiag.report/1), a line for each window; implies --batch'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l no-stacks -d 'Take no user stacks: no samples, and no program or line for waits'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l no-inject -d 'Put nothing into running processes: GPU records only from those that carry gdiag\'s library'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l no-nvml -d 'Do not ask the driver (NVML) for what nvidia-smi shows'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l ascii -d 'Draw with ASCII only'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -l strict -d 'Exit with status 4 when events were lost'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s q -l quiet -d 'Print results, errors and warnings only'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s v -l verbose -d 'Print what is being done; twice for libbpf\'s messages too'
complete -c gdiag -n "__fish_gdiag_using_subcommand top" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s p -l pid -d 'Record these processes and their children; ends when they do' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s G -l cgroup -d 'Record the processes of these cgroups and of those below them, and whoever comes into them; ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l container -d 'Record the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O, Podman or Kubernetes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s o -l output -d 'Write the recording here; an old one becomes FILE.old' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s d -l duration -d 'Stop recording after this time, such as 10s or 250ms' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l wait-threshold -d 'Keep the kernel stack of waits at least this long' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s F -l freq -d 'Samples a second of where each running thread of the target is; 0 for none' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l launch-stacks -d 'Keep the stack of one launch in N (of each thread), or of fewer when that costs too much. Puts a probe into the driver, which every launch pays for' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l snapshot-on -d 'Keep what happens in memory, and write a snapshot to FILE.1, FILE.2 and so on after each such event: a GPU idle for longer than this (gap>50ms), a thread that waited for a CPU (runq>20ms) or for anything (wait>1s). So does the signal USR2, also with --window alone' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l window -d 'Keep this much of the past [default: 10s]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l memory -d 'Keep at most this much in memory; the oldest goes first [default: 256M]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l after -d 'Go on for this long after the event before the snapshot is written [default: 1s]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l snapshots -d 'Write at most so many snapshots by themselves [default: 10]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s a -l all -d 'Record the whole machine'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l no-stacks -d 'Take no user stacks: no samples, and no program or line for waits'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l no-inject -d 'Put nothing into running processes: GPU records only from those that carry gdiag\'s library'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l syscalls -d 'Record each system call of the target, with its time and result. Costs every call a microsecond or so'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l unified-memory -d 'Record when managed memory moves, and when the GPU waits for it. Slows down programs that use much of it. CUPTI has to be told before the first allocation: for a launched command only'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l strict -d 'Exit with status 4 when events were lost'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s q -l quiet -d 'Print errors and warnings only'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s v -l verbose -d 'Print what is being done; twice for libbpf\'s messages too'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -s i -l input -d 'Read this recording' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l gpu -d 'Only this GPU, by its number in the report' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l min-gap -d 'List gaps at least this long; shorter ones still count in every sum' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l gaps -d 'List this many gaps of each GPU, or all [default: 20, and in text 5 of them in full]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l assert -d 'Exit with status 5 unless this holds, such as \'idle<20%\' (can be given again)' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l json -d 'Write JSON instead of text (schema gdiag.report/1)'
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand diff" -l gpu -d 'Only this GPU, by its number in the reports' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand diff" -l min-gap -d 'Look for the cause of gaps at least this long; shorter ones still count in every sum' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand diff" -l json -d 'Write JSON instead of text (schema gdiag.diff/1)'
complete -c gdiag -n "__fish_gdiag_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -s i -l input -d 'Read this recording' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l mode -d 'What the time is time of' -r -f -a "idle\t'Host stacks by the GPU idle time that they caused, with its cause at the base'
mixed\t'CPU, off-CPU and GPU time in one graph'
cpu\t'Time on a CPU'
offcpu\t'Time asleep or waiting for a CPU'
gpu\t'Time of GPU operations, by the stacks that launched them'"
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -s o -l output -d 'Write here instead of to stdout' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l diff -d 'Show what changed since this recording: red took more, blue less' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l from -d 'Leave out what was before this time since the start of the recording, such as 1.5s' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l to -d 'Leave out what was after this time since the start of the recording' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -s p -l pid -d 'Only these processes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -s t -l tid -d 'Only these threads' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l gpu -d 'Only this GPU, by its number in the report' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l title -d 'Title of the picture' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l width -d 'Width of the picture in pixels [default: that of the browser]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l min-width -d 'Leave out frames narrower than this many percent of the picture' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l folded -d 'Write folded stacks instead of a picture: `root;...;leaf NS`'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l normalize -d 'Scale the times of OTHER to the same sum'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l wakers -d 'Put the stacks of those who ended waits on top of those who waited'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l addresses -d 'Show functions without a name by address, rather than all of a file as one'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l exact -d 'Keep idle time without a sample of its own apart'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l reverse -d 'Turn stacks around: merge them from their leaves'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -l inverted -d 'Draw the root at the top'
complete -c gdiag -n "__fish_gdiag_using_subcommand flame" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s p -l pid -d 'Watch these processes and their children; ends when they do' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s G -l cgroup -d 'Watch the processes of these cgroups and of those below them, and whoever comes into them; ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l container -d 'Watch the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O, Podman or Kubernetes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s t -l tid -d 'Only these threads are shown; a command says how long to watch then' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s C -l cpus -d 'Only what happens on these CPUs counts, such as 0,2-3: running there, and waiting to run there' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s d -l duration -d 'Stop watching after this time, such as 10s or 250ms' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s I -l interval -d 'Each time so much time is over, print what has come since, too' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s i -l input -d 'Read this recording instead of watching' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l threshold -d 'With --timehist: only what waited for a CPU at least this long' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l by -d 'What a row is about' -r -f -a "thread\t'Each thread by itself'
process\t'All threads of a process'
name\t'All threads of one name'"
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s s -l sort -d 'Which rows come first' -r -f -a "wait\t'Time waited for a CPU'
run\t'Time on a CPU'
avg\t'Average run-queue latency'
max\t'Longest run-queue latency'
switches\t'Switches'
preempted\t'Times that another took its CPU'"
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l top -d 'Show this many rows of a table, or all' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l from -d 'With -i: leave out what was before this time since the start of the recording, such as 1.5s' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l to -d 'With -i: leave out what was after this time since the start of the recording' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s o -l output -d 'Write here instead of to stdout' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s a -l all -d 'Watch the whole machine, also when a command is given'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l timehist -d 'Print a line for each switch'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l map -d 'Print a column for each CPU and a line for each change'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l hist -d 'Print histograms of the time waited for a CPU and of the time on one, too: of all, and of each with --by process, --by name or several -t'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s w -l wakeups -d 'With --timehist: wakeups, too'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s M -l migrations -d 'With --timehist: migrations, too'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s n -l next -d 'With --timehist: who runs next, too'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l json -d 'Write JSON instead of text (schema gdiag.sched/1); with -I one line each time'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -l strict -d 'Exit with status 4 when events were lost'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s q -l quiet -d 'Print results, errors and warnings only'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s v -l verbose -d 'Print what is being done; twice for libbpf\'s messages too'
complete -c gdiag -n "__fish_gdiag_using_subcommand sched" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s p -l pid -d 'Watch these processes and their children; ends when they do' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s G -l cgroup -d 'Watch the processes of these cgroups and of those below them, and whoever comes into them; ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l container -d 'Watch the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O, Podman or Kubernetes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s t -l tid -d 'Only these threads; a command says how long to watch then' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l duration -d 'Only calls that took at least this many milliseconds, such as 10 or 0.5' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s e -l filter -d 'Only these calls, or with ! all but these; * stands for anything' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s d -d 'Stop watching after this time, such as 10s or 250ms' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s I -l interval -d 'Each time so much time is over, print the sums of what has come since, too' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l max-events -d 'Stop after so many lines' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l top -d 'Show the sums of this many threads, or of all' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s i -l input -d 'Read this recording instead of watching' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l from -d 'With -i: leave out what was before this time since the start of the recording, such as 1.5s' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l to -d 'With -i: leave out what was after this time since the start of the recording' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s o -l output -d 'Write here instead of to stdout' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s a -l all -d 'Watch the whole machine, also when a command is given'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s s -l summary -d 'Sum up, instead of a line for each call'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s S -l with-summary -d 'A line for each call, and the sums at the end'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s T -l time -d 'Print the time of the machine\'s clock (CLOCK_MONOTONIC) instead of that since the start'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l failed -d 'Only calls that failed'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l errno-summary -d 'Sums by error, too'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l hist -d 'Print a histogram of each call\'s times, too'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l total -d 'One table of all threads, instead of one for each'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l json -d 'Write JSON instead of text: a line for each call, or sums (schema gdiag.syscalls/1)'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -l strict -d 'Exit with status 4 when events were lost'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s q -l quiet -d 'Print results, errors and warnings only'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s v -l verbose -d 'Print what is being done; twice for libbpf\'s messages too'
complete -c gdiag -n "__fish_gdiag_using_subcommand syscalls" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -s i -l input -d 'Read this recording' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -l format -d 'Write this format' -r -f -a "perfetto\t'Perfetto\'s own trace format (protobuf), for ui.perfetto.dev and trace_processor'
chrome\t'Trace events as JSON, for chrome://tracing and many others'"
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -s o -l output -d 'Write here instead of to stdout' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -l from -d 'Leave out what was before this time since the start of the recording, such as 1.5s' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -l to -d 'Leave out what was after this time since the start of the recording' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -s p -l pid -d 'Only the threads and operations of these processes; CPUs show all the same who ran' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s p -l pid -d 'Record these processes and their children; ends when they do' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s G -l cgroup -d 'Record the processes of these cgroups and of those below them, and whoever comes into them; ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l container -d 'Record the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O, Podman or Kubernetes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s o -l output -d 'Where snapshots go: FILE.1, FILE.2 and so on' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l window -d 'Keep this much of the past [default: 10s]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l memory -d 'Keep at most this much in memory; the oldest goes first [default: 256M]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l after -d 'Go on for this long after the event before the snapshot is written [default: 1s]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l snapshots -d 'Write at most so many snapshots by themselves [default: 10]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l snapshot-on -d 'Write a snapshot after each such event: a GPU idle for longer than this (gap>50ms), a thread that waited for a CPU (runq>20ms) or for anything (wait>1s)' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l name -d 'Name of this flight recorder: there can be several' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l wait-threshold -d 'Keep the kernel stack of waits at least this long' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s F -l freq -d 'Samples a second of where each running thread of the target is; 0 for none' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l launch-stacks -d 'Keep the stack of one launch in N (of each thread), or of fewer when that costs too much. Puts a probe into the driver, which every launch pays for' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s a -l all -d 'Record the whole machine'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l no-stacks -d 'Take no user stacks: no samples, and no program or line for waits'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l no-inject -d 'Put nothing into running processes: GPU records only from those that carry gdiag\'s library'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -l syscalls -d 'Record each system call of the target, with its time and result. Costs every call a microsecond or so'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s q -l quiet -d 'Print errors and warnings only'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s v -l verbose -d 'Print what is being done; twice for libbpf\'s messages too'
complete -c gdiag -n "__fish_gdiag_using_subcommand start" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand stat" -l name -d 'Which flight recorder' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand stat" -l json -d 'Write JSON instead of text (schema gdiag.stat/1)'
complete -c gdiag -n "__fish_gdiag_using_subcommand stat" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand snapshot" -l name -d 'Which flight recorder' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand snapshot" -s o -l output -d 'Write the recording here; an old one becomes FILE.old' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand snapshot" -l last -d 'Only the last so much of what it holds' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand snapshot" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand stop" -l name -d 'Which flight recorder' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand stop" -s o -l output -d 'Write what it holds to a recording first' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand stop" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand check" -s p -l pid -d 'Also look at this process, without touching it: would its GPU be recorded, and why not?' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand check" -l bundle -d 'Also write a support bundle here (.tar.gz); there are no names, paths or ids of yours in it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand check" -l json -d 'Write JSON instead of text (schema gdiag.check/1)'
complete -c gdiag -n "__fish_gdiag_using_subcommand check" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand shim; and not __fish_seen_subcommand_from install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand shim; and not __fish_seen_subcommand_from install" -f -a "install" -d 'Write the library for CUDA_INJECTION64_PATH'
complete -c gdiag -n "__fish_gdiag_using_subcommand shim; and __fish_seen_subcommand_from install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "top" -d 'Show live why GPUs are idle, and who is to blame'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "record" -d 'Record what GPUs and the host do'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "report" -d 'Explain why the GPUs of a recording were idle'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "diff" -d 'Say what changed from one recording to another'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "flame" -d 'Draw flame graphs: stacks as wide as the time they took'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "sched" -d 'Show what the scheduler did: who ran, who waited for a CPU, why, and who was in the way'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "syscalls" -d 'Show system calls: one by one as they end, or summed up'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "export" -d 'Write a recording in a format of other tools'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "start" -d 'Start the flight recorder: record into memory, where the newest overwrites the oldest'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "stat" -d 'Show whether the flight recorder runs, and what it holds'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "snapshot" -d 'Write what the flight recorder holds to a recording; it goes on'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "stop" -d 'End the flight recorder, and clean up after one that was killed'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "check" -d 'Tell whether this machine can be recorded, and what to do about what is missing'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "shim" -d 'Handle the library that records CUDA inside a program'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and not __fish_seen_subcommand_from top record report diff flame sched syscalls export start stat snapshot stop check shim" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c gdiag -n "__fish_gdiag_using_subcommand help; and __fish_seen_subcommand_from shim" -f -a "install" -d 'Write the library for CUDA_INJECTION64_PATH'
