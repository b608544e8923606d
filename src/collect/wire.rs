//! Reading plain-old-data out of bytes from the kernel: the one place that sees wire structs as memory.

use super::{bpf, cuda_processes, driver, sched_sum, stacks, syscalls};

/// A struct that a BPF program writes: integers only, so any bytes are a valid value.
///
/// # Safety
/// Implement only for `#[repr(C)]` structs of integers and arrays of integers, without padding.
pub(crate) unsafe trait Wire: Copy {}

/// The first `size_of::<T>()` bytes as a `T`, or `None` when there are fewer.
pub(crate) fn read<T: Wire>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the bytes are there, `read_unaligned` needs no alignment, and by the
    // contract of `Wire` every bit pattern is a valid T.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// A record that was cut after its last used byte: what is missing is zero. `None` when not even
/// `least` bytes are there, or more than there is room for.
pub(crate) fn read_cut<T: Wire>(bytes: &[u8], least: usize) -> Option<Box<T>> {
    if bytes.len() < least || bytes.len() > size_of::<T>() {
        return None;
    }
    let mut value = Box::<std::mem::MaybeUninit<T>>::new(std::mem::MaybeUninit::zeroed());
    // SAFETY: both are bytes, `value` has room for them, and by the contract of `Wire` every bit
    // pattern is a valid T, zero too.
    unsafe {
        value
            .as_mut_ptr()
            .cast::<u8>()
            .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        Some(value.assume_init())
    }
}

/// A struct for a BPF program to read, as it lies in memory. For those without padding.
pub(crate) fn as_bytes<T: Wire>(value: &T) -> &[u8] {
    // SAFETY: `value` is that long, and by the contract of `Wire` all of it are integers.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

macro_rules! wire {
    ($($module:ident: $($name:ident)*;)*) => {$($(
        // SAFETY: generated from a C struct of integers and arrays of integers.
        unsafe impl Wire for $module::types::$name {}
    )*)*};
}

wire! {
    bpf:
    gdiag_slot gdiag_rec_hdr gdiag_task gdiag_exit gdiag_wait gdiag_resumed gdiag_cpu_wait gdiag_stall gdiag_signal gdiag_irq
    gdiag_cgroup cpu_losses;
    cuda_processes: gdiag_cuda_process;
    driver: gdiag_call;
    sched_sum: gdiag_thread_sum gdiag_pair gdiag_pair_sum cpu_data;
    syscalls: gdiag_syscall gdiag_block gdiag_file gdiag_captures gdiag_sum gdiag_failure;
    stacks: stack_costs gdiag_sample gdiag_pycode gdiag_py_process;
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::types;

    #[test]
    fn short_input_is_no_record() {
        let bytes = [7u8; 24];
        assert!(read::<types::gdiag_slot>(&bytes).is_some());
        assert!(read::<types::gdiag_slot>(&bytes[..23]).is_none());
        assert!(read::<types::gdiag_slot>(&[]).is_none());
    }

    #[test]
    fn unaligned_input_is_read() {
        let mut bytes = [0u8; 33];
        bytes[1..9].copy_from_slice(&42u64.to_le_bytes());
        bytes[9..13].copy_from_slice(&7u32.to_le_bytes());
        let slot: types::gdiag_slot = read(&bytes[1..]).expect("33 bytes hold a slot");
        assert_eq!((slot.ts_ns, slot.a), (42, 7));
    }
}
