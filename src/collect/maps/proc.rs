//! /proc/PID/maps: what is mapped executable now.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read as _};

use super::events::{FileHint, Mmap};

/// Read of one process at most: some 150,000 mappings.
const MOST_BYTES: u64 = 16 << 20;

/// The executable mappings of a process. Waits for the lock of its memory, which the process may
/// hold for long: not for the thread that records.
pub(super) fn read(proc_pid: u32) -> io::Result<Vec<Mmap>> {
    let file = File::open(format!("/proc/{proc_pid}/maps"))?;
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    if text.is_empty() {
        // Its memory is gone already, itself not yet; a thread of the kernel has none.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(parse(&text))
}

/// A line without its end, as the limit may leave one, is left out.
fn parse(text: &[u8]) -> Vec<Mmap> {
    text.split_inclusive(|&b| b == b'\n')
        .filter_map(|line| parse_line(line.strip_suffix(b"\n")?))
        .collect()
}

/// `start-end rwxp offset major:minor inode   path`, when it is executable.
fn parse_line(line: &[u8]) -> Option<Mmap> {
    let mut rest = line;
    let mut field = || -> Option<&[u8]> {
        let end = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (field, after) = rest.split_at(end);
        rest = after.get(1..).unwrap_or_default();
        (!field.is_empty()).then_some(field)
    };
    let range = field()?;
    let executable = field()?.get(2) == Some(&b'x');
    let offset = hex(field()?)?;
    let device = field()?;
    let inode = std::str::from_utf8(field()?).ok()?.parse().ok()?;
    let dash = range.iter().position(|&b| b == b'-')?;
    let colon = device.iter().position(|&b| b == b':')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    // Padded to a column. A path begins with a slash or a bracket, never with a space.
    let path = rest.trim_ascii_start();
    let file = FileHint::Inode {
        major: u32::try_from(hex(&device[..colon])?).ok()?,
        minor: u32::try_from(hex(&device[colon + 1..])?).ok()?,
        inode,
    };
    (executable && start < end).then(|| Mmap {
        start,
        end,
        offset,
        file,
        path: unescape(path),
    })
}

fn hex(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// The kernel writes a newline in a path as `\012`, and nothing else in that way.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            plain.push(b'\n');
            rest = after;
        } else {
            plain.push(first);
            rest = after;
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(major: u32, minor: u32, inode: u64) -> FileHint {
        FileHint::Inode {
            major,
            minor,
            inode,
        }
    }

    #[test]
    fn executable_lines_are_kept() {
        let text = b"55d0c0400000-55d0c0403000 r--p 00000000 fe:01 1234   /usr/bin/a\n\
            55d0c0403000-55d0c0409000 r-xp 00003000 fe:01 1234                       /usr/bin/a b\n\
            7f0000000000-7f0000001000 rwxp 00000000 00:00 0 \n\
            7ffd0b5f2000-7ffd0b5f4000 r-xp 00000000 00:00 0                          [vdso]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]\n\
            7f0000002000-7f0000003000 r-xp 00000000 fe:01 77 /cut sho";
        let maps = parse(text);
        let paths: Vec<_> = maps
            .iter()
            .map(|m| String::from_utf8_lossy(&m.path))
            .collect();
        assert_eq!(paths, ["/usr/bin/a b", "", "[vdso]", "[vsyscall]"]);
        assert_eq!(
            (maps[0].start, maps[0].end),
            (0x55d0_c040_3000, 0x55d0_c040_9000)
        );
        assert_eq!(
            (maps[0].offset, &maps[0].file),
            (0x3000, &inode(0xfe, 1, 1234))
        );
    }

    #[test]
    fn names_with_newlines_and_backslashes_are_one_name() {
        let text = br"1000-2000 r-xp 00000000 fe:01 9 /tmp/a\0121000-2000 r-xp\b (deleted)";
        let maps = parse(&[text.as_slice(), b"\n"].concat());
        assert_eq!(maps.len(), 1);
        assert_eq!(maps[0].path, b"/tmp/a\n1000-2000 r-xp\\b (deleted)");
    }

    #[test]
    fn garbage_is_left_out() {
        for bad in [
            "",
            "\n",
            " ",
            "x-y r-xp 0 0:0 0 /a\n",
            "1000 r-xp 0 0:0 0 /a\n",
            "2000-1000 r-xp 0 0:0 0 /a\n",
            "1000-2000 r-xp 0 00 0 /a\n",
            "1000-2000 r-xp 0 0:0 x /a\n",
            "1000-2000 r-xp 0 fffffffff:0 1 /a\n",
            "11111111111111111-2 r-xp 0 0:0 0 /a\n",
            "\u{fffd}\u{fffd}-1 r-xp\n",
        ] {
            assert_eq!(parse(bad.as_bytes()), [], "{bad:?}");
        }
    }

    #[test]
    fn a_path_of_any_length_is_a_path() {
        let long = "/x".repeat(10_000);
        let text = format!("1000-2000 r-xp 00000000 fe:01 9 {long}\n");
        assert_eq!(parse(text.as_bytes())[0].path, long.as_bytes());
    }

    #[test]
    fn the_own_program_is_mapped() {
        let own = std::env::current_exe().unwrap();
        let maps = read(std::process::id()).unwrap();
        assert!(maps
            .iter()
            .any(|m| m.path == own.as_os_str().as_encoded_bytes()));
        assert!(read(u32::MAX).is_err());
    }
}
