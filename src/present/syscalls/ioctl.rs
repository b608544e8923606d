//! What an ioctl asks for: by name of the GPU's driver, else as the number is made up.
#![forbid(unsafe_code)]

/// The magic of NVIDIA's driver for the GPU.
const NV_MAGIC: u32 = b'F' as u32;

/// `nv_escape.h` and `nv-ioctl-numbers.h` of NVIDIA's open kernel modules, without `NV_ESC_`.
const NV: &[(u32, &str)] = &[
    (0x27, "RM_ALLOC_MEMORY"),
    (0x28, "RM_ALLOC_OBJECT"),
    (0x29, "RM_FREE"),
    (0x2a, "RM_CONTROL"),
    (0x2b, "RM_ALLOC"),
    (0x32, "RM_CONFIG_GET"),
    (0x33, "RM_CONFIG_SET"),
    (0x34, "RM_DUP_OBJECT"),
    (0x35, "RM_SHARE"),
    (0x37, "RM_CONFIG_GET_EX"),
    (0x38, "RM_CONFIG_SET_EX"),
    (0x39, "RM_I2C_ACCESS"),
    (0x41, "RM_IDLE_CHANNELS"),
    (0x4a, "RM_VID_HEAP_CONTROL"),
    (0x4d, "RM_ACCESS_REGISTRY"),
    (0x4e, "RM_MAP_MEMORY"),
    (0x4f, "RM_UNMAP_MEMORY"),
    (0x52, "RM_GET_EVENT_DATA"),
    (0x54, "RM_ALLOC_CONTEXT_DMA2"),
    (0x56, "RM_ADD_VBLANK_CALLBACK"),
    (0x57, "RM_MAP_MEMORY_DMA"),
    (0x58, "RM_UNMAP_MEMORY_DMA"),
    (0x59, "RM_BIND_CONTEXT_DMA"),
    (0x5c, "RM_EXPORT_OBJECT_TO_FD"),
    (0x5d, "RM_IMPORT_OBJECT_FROM_FD"),
    (0x5e, "RM_UPDATE_DEVICE_MAPPING_INFO"),
    (0x5f, "RM_LOCKLESS_DIAGNOSTIC"),
    (200, "CARD_INFO"),
    (201, "REGISTER_FD"),
    (206, "ALLOC_OS_EVENT"),
    (207, "FREE_OS_EVENT"),
    (209, "STATUS_CODE"),
    (210, "CHECK_VERSION_STR"),
    (211, "IOCTL_XFER_CMD"),
    (212, "ATTACH_GPUS_TO_FD"),
    (213, "QUERY_DEVICE_INTR"),
    (214, "SYS_PARAMS"),
    (217, "EXPORT_TO_DMABUF_FD"),
    (218, "WAIT_OPEN_COMPLETE"),
];

/// `uvm_ioctl.h` and `uvm_linux_ioctl.h` of the same, without `UVM_`: the whole number.
const UVM: &[(u32, &str)] = &[
    (1, "RESERVE_VA"),
    (2, "RELEASE_VA"),
    (3, "REGION_COMMIT"),
    (4, "REGION_DECOMMIT"),
    (5, "REGION_SET_STREAM"),
    (6, "SET_STREAM_RUNNING"),
    (7, "SET_STREAM_STOPPED"),
    (10, "ADD_SESSION"),
    (12, "ENABLE_COUNTERS"),
    (13, "MAP_COUNTER"),
    (14, "CREATE_EVENT_QUEUE"),
    (15, "REMOVE_EVENT_QUEUE"),
    (16, "MAP_EVENT_QUEUE"),
    (17, "EVENT_CTRL"),
    (20, "GET_GPU_UUID_TABLE"),
    (21, "REGION_SET_BACKING"),
    (22, "REGION_UNSET_BACKING"),
    (23, "CREATE_RANGE_GROUP"),
    (24, "DESTROY_RANGE_GROUP"),
    (25, "REGISTER_GPU_VASPACE"),
    (26, "UNREGISTER_GPU_VASPACE"),
    (27, "REGISTER_CHANNEL"),
    (28, "UNREGISTER_CHANNEL"),
    (29, "ENABLE_PEER_ACCESS"),
    (30, "DISABLE_PEER_ACCESS"),
    (31, "SET_RANGE_GROUP"),
    (33, "MAP_EXTERNAL_ALLOCATION"),
    (34, "FREE"),
    (35, "MEM_MAP"),
    (37, "REGISTER_GPU"),
    (38, "UNREGISTER_GPU"),
    (39, "PAGEABLE_MEM_ACCESS"),
    (40, "PREVENT_MIGRATION_RANGE_GROUPS"),
    (41, "ALLOW_MIGRATION_RANGE_GROUPS"),
    (42, "SET_PREFERRED_LOCATION"),
    (43, "UNSET_PREFERRED_LOCATION"),
    (44, "ENABLE_READ_DUPLICATION"),
    (45, "DISABLE_READ_DUPLICATION"),
    (46, "SET_ACCESSED_BY"),
    (47, "UNSET_ACCESSED_BY"),
    (51, "MIGRATE"),
    (53, "MIGRATE_RANGE_GROUP"),
    (56, "TOOLS_INIT_EVENT_TRACKER"),
    (57, "TOOLS_SET_NOTIFICATION_THRESHOLD"),
    (58, "TOOLS_EVENT_QUEUE_ENABLE_EVENTS"),
    (59, "TOOLS_EVENT_QUEUE_DISABLE_EVENTS"),
    (60, "TOOLS_ENABLE_COUNTERS"),
    (61, "TOOLS_DISABLE_COUNTERS"),
    (62, "TOOLS_READ_PROCESS_MEMORY"),
    (63, "TOOLS_WRITE_PROCESS_MEMORY"),
    (64, "TOOLS_GET_PROCESSOR_UUID_TABLE"),
    (65, "MAP_DYNAMIC_PARALLELISM_REGION"),
    (66, "UNMAP_EXTERNAL"),
    (67, "TOOLS_FLUSH_EVENTS"),
    (68, "ALLOC_SEMAPHORE_POOL"),
    (69, "CLEAN_UP_ZOMBIE_RESOURCES"),
    (70, "PAGEABLE_MEM_ACCESS_ON_GPU"),
    (71, "POPULATE_PAGEABLE"),
    (72, "VALIDATE_VA_RANGE"),
    (73, "CREATE_EXTERNAL_RANGE"),
    (74, "MAP_EXTERNAL_SPARSE"),
    (75, "MM_INITIALIZE"),
    (76, "TOOLS_INIT_EVENT_TRACKER_V2"),
    (77, "TOOLS_GET_PROCESSOR_UUID_TABLE_V2"),
    (78, "ALLOC_DEVICE_P2P"),
    (79, "CLEAR_ALL_ACCESS_COUNTERS"),
    (80, "DISCARD"),
    (0x3000_0001, "INITIALIZE"),
    (0x3000_0002, "DEINITIALIZE"),
];

/// Of terminals and of any file: these are older than the way numbers are made up.
const OLD: &[(u32, &str)] = &[
    (0x5401, "TCGETS"),
    (0x5402, "TCSETS"),
    (0x5403, "TCSETSW"),
    (0x540f, "TIOCGPGRP"),
    (0x5410, "TIOCSPGRP"),
    (0x5413, "TIOCGWINSZ"),
    (0x541b, "FIONREAD"),
    (0x5421, "FIONBIO"),
    (0x5450, "FIONCLEX"),
    (0x5451, "FIOCLEX"),
];

/// `path` is that of the file, as far as it is known.
pub(super) fn text(path: Option<&str>, request: u64) -> String {
    // The kernel takes 32 bits of it.
    #[allow(clippy::cast_possible_truncation)]
    let request = request as u32;
    let (nr, magic) = (request & 0xff, request >> 8 & 0xff);
    let of = |table: &[(u32, &str)], number| {
        let row = table.iter().find(|row| row.0 == number);
        row.map(|row| row.1.to_string())
    };
    let named = match path {
        Some(path) if path.starts_with("/dev/nvidia-uvm") => {
            of(UVM, request).map(|name| format!("UVM_{name}"))
        }
        Some(path) if path.starts_with("/dev/nvidia") && magic == NV_MAGIC => {
            of(NV, nr).map(|name| format!("NV_ESC_{name}"))
        }
        _ => of(OLD, request),
    };
    named.unwrap_or_else(|| made_up(request))
}

/// Direction, magic, number and size, as `asm-generic/ioctl.h` puts them together.
fn made_up(request: u32) -> String {
    let (nr, magic) = (request & 0xff, request >> 8 & 0xff);
    let (size, direction) = (request >> 16 & 0x3fff, request >> 30);
    let direction = match direction {
        // Most of those without are older.
        0 if size == 0 => return format!("{request:#x}"),
        0 => "_IOC_NONE",
        1 => "_IOC_WRITE",
        2 => "_IOC_READ",
        _ => "_IOC_READ|_IOC_WRITE",
    };
    format!("_IOC({direction}, {magic:#x}, {nr:#x}, {size:#x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_calls_have_their_names() {
        let of = |path, request| text(Some(path), request);
        assert_eq!(of("/dev/nvidiactl", 0xc020_462a), "NV_ESC_RM_CONTROL");
        assert_eq!(of("/dev/nvidia0", 0xc028_46c8), "NV_ESC_CARD_INFO");
        assert_eq!(of("/dev/nvidia-uvm", 0x3000_0001), "UVM_INITIALIZE");
        assert_eq!(of("/dev/nvidia-uvm", 33), "UVM_MAP_EXTERNAL_ALLOCATION");
        assert_eq!(of("/dev/pts/0", 0x5401), "TCGETS");
    }

    #[test]
    fn of_others_the_number_is_taken_apart() {
        let other = "_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0x2a, 0x20)";
        assert_eq!(text(Some("/dev/other"), 0xc020_462a), other);
        assert_eq!(text(None, 0xc020_462a), other);
        assert_eq!(text(None, 0x1234), "0x1234");
        assert_eq!(
            text(Some("/dev/nvidia0"), 0xc020_46ff),
            "_IOC(_IOC_READ|_IOC_WRITE, 0x46, 0xff, 0x20)"
        );
    }
}
