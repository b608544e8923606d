//! The time zone of this machine, which only the C library knows: it follows `TZ` and `/etc/localtime`.

/// How far the clocks on the walls here are from UTC at `unix_s`, in seconds; 0 when that cannot be told.
pub fn utc_offset(unix_s: i64) -> i32 {
    let time: libc::time_t = unix_s;
    // SAFETY: all zeros are a value of it, with a null pointer for a name that is not read.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: it reads one and writes the other, and both live as long as the call.
    unsafe { libc::localtime_r(&raw const time, &raw mut parts) };
    i32::try_from(parts.tm_gmtoff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_further_from_utc_than_a_day() {
        for time in [i64::MIN, 0, 1_772_287_341, i64::MAX] {
            assert!(utc_offset(time).abs() < 86_400, "{time}");
        }
    }
}
