"""Where CUDA is on this machine, and how the C programs beside this file are built with it."""

import glob
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def first(kind, patterns):
    """The first path that exists."""
    for pattern in patterns:
        for path in sorted(glob.glob(pattern), reverse=True):
            return path
    sys.exit(f"{kind} not found; looked at: {' '.join(patterns)}")


def roots():
    home = os.environ.get("CUDA_HOME")
    return ([home] if home else []) + ["/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda"]


def cupti_dir():
    """Folder of the toolkit's libcupti."""
    dirs = [f"{r}/{d}/libcupti.so*" for r in roots() for d in ("extras/CUPTI/lib64", "lib64", "targets/x86_64-linux/lib")]
    return os.path.dirname(first("libcupti.so", dirs))


def include_flags():
    cuda = [f"{r}/{d}/cuda.h" for r in roots() for d in ("include", "targets/x86_64-linux/include")]
    cupti = [f"{r}/{d}/cupti.h" for r in roots() for d in ("extras/CUPTI/include", "include", "targets/x86_64-linux/include")]
    return ["-I" + os.path.dirname(first("cuda.h", cuda)), "-I" + os.path.dirname(first("cupti.h", cupti))]


# The first may be in no place that the loader looks at.
LIBCUDA = ["/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"]


def rpath_flags(linker="-Wl,"):
    """So that a program finds the driver's library."""
    return [f"{linker}-rpath,{os.path.dirname(path)}" for path in LIBCUDA[:1] if os.path.exists(path)]


def libcuda_flags():
    """Links the stub of the driver's library where there is one: it has the right name and no needs of its own."""
    stubs = [f"{r}/{d}/stubs/libcuda.so" for r in roots() for d in ("lib64", "targets/x86_64-linux/lib")]
    return [first("libcuda.so.1", stubs + LIBCUDA), *rpath_flags()]


def build(source, out, cupti=True, shared=False):
    """Compile tests/gpu/SOURCE to OUT; the program's own folder of libcupti is kept as its rpath."""
    cmd = ["gcc", "-O2", "-Wall", "-pthread", *include_flags(), os.path.join(HERE, source), "-o", out]
    if shared:
        cmd += ["-shared", "-fPIC"]
    else:
        cmd += libcuda_flags()
    if cupti:
        lib = first("libcupti", [cupti_dir() + "/libcupti.so", cupti_dir() + "/libcupti.so.*"])
        cmd += [lib, "-Wl,-rpath," + cupti_dir()]
    done = subprocess.run(cmd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(cmd)}\n{done.stderr}")
    return out


def out_dir():
    """$OUT, or a folder of its own below target/."""
    path = os.environ.get("OUT") or os.path.join(HERE, "../../target/gpu")
    os.makedirs(path, exist_ok=True)
    return os.path.abspath(path)
