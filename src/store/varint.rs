//! Integers in as few bytes as they need: seven bits a byte, least significant first.
#![forbid(unsafe_code)]

/// The most bytes that a varint takes.
pub(super) const MAX_LEN: usize = 10;

#[inline]
pub(super) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Small magnitudes to small numbers: 0, -1, 1, -2 become 0, 1, 2, 3.
///
/// Applied to the wrapped difference of two `u64`, it loses nothing whatever they are.
#[inline]
pub(super) fn zigzag(value: u64) -> u64 {
    let value = value.cast_signed();
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

#[inline]
pub(super) fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// Takes values from the front of some bytes. `None` means that they end too early or make no sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    #[inline]
    pub(super) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (i, &byte) in self.0.iter().take(MAX_LEN).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                // The tenth byte has room for one bit only.
                if i == MAX_LEN - 1 && byte > 1 {
                    return None;
                }
                self.0 = &self.0[i + 1..];
                return Some(value);
            }
        }
        None
    }

    pub(super) fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORNERS: [u64; 9] = [
        0,
        1,
        127,
        128,
        16_383,
        16_384,
        u64::MAX / 2,
        u64::MAX / 2 + 1,
        u64::MAX,
    ];

    #[test]
    fn values_come_back() {
        for value in CORNERS {
            let mut out = Vec::new();
            put(&mut out, value);
            let mut cursor = Cursor(&out);
            assert_eq!(cursor.varint(), Some(value));
            assert!(cursor.0.is_empty());
            assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn small_steps_both_ways_take_one_byte() {
        for step in [0, 1, 63, 1u64.wrapping_neg(), 64u64.wrapping_neg()] {
            assert!(zigzag(step) < 0x80, "{step:#x}");
        }
    }

    #[test]
    fn endless_cut_and_overlong_values_are_refused() {
        assert_eq!(Cursor(&[]).varint(), None);
        assert_eq!(Cursor(&[0x80]).varint(), None);
        assert_eq!(Cursor(&[0xff; 11]).varint(), None);
        let mut too_big = [0xff; 10];
        too_big[9] = 2;
        assert_eq!(Cursor(&too_big).varint(), None);
    }

    #[test]
    fn nothing_is_taken_beyond_the_end() {
        let mut cursor = Cursor(&[1, 2, 3]);
        assert_eq!(cursor.take(u64::MAX), None);
        assert_eq!(cursor.take(2), Some(&[1, 2][..]));
        assert_eq!(cursor.take(2), None);
        assert_eq!(cursor.u8(), Some(3));
        assert_eq!(cursor.u8(), None);
    }
}
