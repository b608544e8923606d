//! One box of a flame graph: numbers only, its text is the presenter's work.
#![forbid(unsafe_code)]

use crate::analyse::cause::Cause;
use crate::event::{CopyKind, Cut, NameId, Pid, Tid};
use crate::model::thread::Who;

/// What a frame is made of, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// What stacks stand on: device, process, thread.
    Base,
    Native,
    Python,
    /// A library of NVIDIA's.
    Cuda,
    Kernel,
    /// An operation of the device.
    Gpu,
    /// Why the device was idle.
    Cause,
    Blocked,
    Runnable,
    /// Says what is not known.
    Unknown,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::Base,
        Kind::Cause,
        Kind::Python,
        Kind::Native,
        Kind::Cuda,
        Kind::Kernel,
        Kind::Gpu,
        Kind::Blocked,
        Kind::Runnable,
        Kind::Unknown,
    ];
}

/// What a device did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    Kernel(NameId),
    Memcpy(CopyKind),
    Memset,
    Graph,
}

/// Who ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WokenBy {
    Thread(Who),
    /// A thread of which nothing but the id is known.
    Tid(Tid),
    HardIrq(u16),
    SoftIrq(u16),
    Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// By its number in the report.
    Device(u32),
    Process(Pid),
    /// With the first identity of the thread: a new name makes no new thread.
    Thread(Who),
    Cause(Cause),
    /// A function of the kernel.
    Kernel(NameId),
    Function {
        name: NameId,
        cuda: bool,
        /// The compiler put it into the frame before.
        inlined: bool,
    },
    /// A function without a name, somewhere in this file.
    Module {
        module: NameId,
        cuda: bool,
    },
    /// The same, when the address was asked for.
    Address {
        module: NameId,
        address: u64,
        cuda: bool,
    },
    /// Code outside of every file.
    Anonymous,
    Python {
        function: NameId,
        file: NameId,
        line: u32,
    },
    Gpu(Work),
    /// Off the CPU, waiting for this.
    Blocked(&'static str),
    /// Off the CPU, though it could have run, because of this.
    Runnable(&'static str),
    /// Frames above are the waker's, leaf first.
    WokenBy(WokenBy),
    /// The thread that had the CPU instead.
    TakenBy(WokenBy),
    /// Callers are missing below.
    Cut(Cut),
    /// What is not known.
    Note(&'static str),
}

impl Frame {
    pub fn kind(self) -> Kind {
        let native = |cuda| if cuda { Kind::Cuda } else { Kind::Native };
        match self {
            Frame::Device(_) | Frame::Process(_) | Frame::Thread(_) | Frame::WokenBy(_) => {
                Kind::Base
            }
            Frame::TakenBy(_) => Kind::Runnable,
            Frame::Cause(_) => Kind::Cause,
            Frame::Kernel(_) => Kind::Kernel,
            Frame::Function { cuda, .. }
            | Frame::Module { cuda, .. }
            | Frame::Address { cuda, .. } => native(cuda),
            Frame::Anonymous => Kind::Native,
            Frame::Python { .. } => Kind::Python,
            Frame::Gpu(_) => Kind::Gpu,
            Frame::Blocked(_) => Kind::Blocked,
            Frame::Runnable(_) => Kind::Runnable,
            Frame::Cut(_) | Frame::Note(_) => Kind::Unknown,
        }
    }
}

/// Does the file belong to CUDA: the driver's libraries, the runtime, and those on top of it?
pub(super) fn is_cuda(module: &str) -> bool {
    const LIBRARIES: [&str; 14] = [
        "libcuda",
        "libcudart",
        "libcupti",
        "libcublas",
        "libcudnn",
        "libcufft",
        "libcufile",
        "libcurand",
        "libcusolver",
        "libcusparse",
        "libnccl",
        "libnvrtc",
        "libnvJitLink",
        "libnvidia-",
    ];
    let file = module.rsplit('/').next().unwrap_or(module);
    LIBRARIES.iter().any(|library| {
        file.strip_prefix(library)
            .is_some_and(|rest| library.ends_with('-') || !rest.starts_with(char::is_lowercase))
        // cuBLAS comes as libcublas and libcublasLt, cuDNN as a dozen libcudnn_*.
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_cuda_are_known_by_their_file() {
        for file in [
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/venv/nvidia/cublas/lib/libcublasLt.so.12",
            "libcudnn_engines_precompiled.so.9",
            "libcudart-9335f6a2.so.12",
            "libnvidia-ptxjitcompiler.so.1",
            "libnccl.so.2",
        ] {
            assert!(is_cuda(file), "{file}");
        }
        for file in [
            "libtorch_cuda.so",
            "/libcuda.so/libx.so",
            "libcudadebug.so",
            "python3",
            "",
        ] {
            assert!(!is_cuda(file), "{file}");
        }
    }
}
