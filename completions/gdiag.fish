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
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "record" -d 'Record what GPUs and the host do'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "report" -d 'Explain why the GPUs of a recording were idle'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "flame" -d 'Draw flame graphs: stacks as wide as the time they took'
complete -c gdiag -n "__fish_gdiag_needs_command" -f -a "shim" -d 'Handle the library that records CUDA inside a program'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s p -l pid -d 'Record these processes and their children; ends when they do' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s G -l cgroup -d 'Record the processes of these cgroups and of those below them, and whoever comes into them; ends when they are removed. PATH is a directory, or a path as /proc/PID/cgroup shows it' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l container -d 'Record the containers whose ids begin so, by their cgroups: of Docker, containerd, CRI-O, Podman or Kubernetes' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s o -l output -d 'Write the recording here; an old one becomes FILE.old' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s d -l duration -d 'Stop recording after this time, such as 10s or 250ms' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l wait-threshold -d 'Keep the kernel stack of waits at least this long' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s F -l freq -d 'Samples a second of where each running thread of the target is; 0 for none' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l launch-stacks -d 'Keep the stack of one launch in N (of each thread), or of fewer when that costs too much. Puts a probe into the driver, which every launch pays for' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s a -l all -d 'Record the whole machine'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l no-stacks -d 'Take no user stacks: no samples, and no program or line for waits'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l unified-memory -d 'Record when managed memory moves, and when the GPU waits for it. Slows down programs that use much of it. CUPTI has to be told before the first allocation: for a launched command only'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l no-inject -d 'Put nothing into running processes: GPU records only from those that carry gdiag\'s library'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -l strict -d 'Exit with status 4 when events were lost'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s q -l quiet -d 'Print errors and warnings only'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s v -l verbose -d 'Print what is being done; twice for libbpf\'s messages too'
complete -c gdiag -n "__fish_gdiag_using_subcommand record" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -s i -l input -d 'Read this recording' -r -F
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l gpu -d 'Only this GPU, by its number in the report' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l min-gap -d 'List gaps at least this long; shorter ones still count in every sum' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l gaps -d 'List this many gaps of each GPU, or all [default: 20, and in text 5 of them in full]' -r
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -l json -d 'Write JSON instead of text (schema gdiag.report/1)'
complete -c gdiag -n "__fish_gdiag_using_subcommand report" -s h -l help -d 'Print help (see more with \'--help\')'
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
complete -c gdiag -n "__fish_gdiag_using_subcommand shim; and not __fish_seen_subcommand_from install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c gdiag -n "__fish_gdiag_using_subcommand shim; and not __fish_seen_subcommand_from install" -f -a "install" -d 'Write the library for CUDA_INJECTION64_PATH'
complete -c gdiag -n "__fish_gdiag_using_subcommand shim; and __fish_seen_subcommand_from install" -s h -l help -d 'Print help (see more with \'--help\')'
