//! Draws from the measured tables of [`crate::leads`].
#![forbid(unsafe_code)]

use crate::leads::{BySize, Quantiles};

/// The value at a quantile: `at` is a fraction of 2^64.
///
/// Between two quantiles the value rises evenly, also in the last per cent: the rare
/// extremes of a recording come a little more often than they were measured.
pub fn at(table: &Quantiles, at: u64) -> i64 {
    // The top 7 bits times 100 pick the step, the rest interpolates inside it.
    let scaled = u128::from(at) * 100;
    let index = (scaled >> 64) as usize;
    let fraction = (scaled & u128::from(u64::MAX)) >> 32;
    let low = i64::from(table[index]);
    // Both factors have at most 32 bits.
    let rise = u64::from(table[index + 1].abs_diff(table[index]));
    low + ((u128::from(rise) * fraction) >> 32) as i64
}

/// The same for something that takes time: a negative value means none.
pub fn ns(table: &Quantiles, at: u64) -> u64 {
    self::at(table, at).max(0) as u64
}

/// The value for a number of bytes: on the line between the sizes that were measured,
/// and that of the nearest one beyond them.
pub fn at_size(rows: BySize, bytes: u64, at: u64) -> i64 {
    let bytes = bytes.clamp(rows[0].0, rows[rows.len() - 1].0);
    on_line(rows, bytes, at)
}

/// How long something of that many bytes takes, in ns: like [`at_size`], but what is larger
/// than anything that was measured goes on at the speed of the last stretch.
pub fn length(rows: BySize, bytes: u64, at: u64) -> u64 {
    on_line(rows, bytes.max(rows[0].0), at).max(1) as u64
}

fn on_line(rows: BySize, bytes: u64, at: u64) -> i64 {
    let above = rows.partition_point(|&(size, _)| size < bytes);
    let above = above.clamp(1, rows.len().max(2) - 1);
    let (size, low) = rows[above - 1];
    let Some(&(next_size, high)) = rows.get(above) else {
        return self::at(low, at);
    };
    let (low, high) = (self::at(low, at), self::at(high, at));
    let share = (bytes - size) as f64 / (next_size - size) as f64;
    low + ((high - low) as f64 * share) as i64
}

/// A deterministic draw: number `n` of the sequence that `seed` starts.
pub fn random(seed: u64, n: u64) -> u64 {
    // splitmix64
    let mut z = seed.wrapping_add((n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leads::{self, LAUNCH_EMPTY_CALL, LAUNCH_EMPTY_LEAD};

    const MEDIAN: u64 = 1 << 63;

    #[test]
    fn draws_stay_inside_the_table_and_hit_its_ends() {
        let table = &LAUNCH_EMPTY_LEAD;
        assert_eq!(at(table, 0), i64::from(table[0]));
        assert_eq!(at(table, u64::MAX), i64::from(table[100]) - 1);
        assert_eq!(at(table, MEDIAN), i64::from(table[50]));
    }

    #[test]
    fn a_negative_time_is_none() {
        let table = &LAUNCH_EMPTY_LEAD;
        assert!(table[0] < 0);
        assert_eq!(ns(table, 0), 0);
        assert_eq!(ns(table, MEDIAN), table[50] as u64);
    }

    #[test]
    fn a_measured_size_has_its_own_row_and_others_lie_between() {
        let rows = leads::HTOD_PINNED.length;
        for &(size, row) in rows {
            assert_eq!(at_size(rows, size, MEDIAN), i64::from(row[50]));
            assert_eq!(length(rows, size, MEDIAN), row[50] as u64);
        }
        let middle = (rows[0].0 + rows[1].0) / 2;
        let between = (rows[0].1[50] + rows[1].1[50]) / 2;
        assert_eq!(at_size(rows, middle, MEDIAN), i64::from(between));
    }

    #[test]
    fn beyond_the_measured_sizes_only_lengths_grow() {
        let rows = leads::HTOD_PINNED.length;
        let [(_, low), .., (size, high)] = rows else {
            panic!("two sizes")
        };
        assert_eq!(at_size(rows, 1, MEDIAN), i64::from(low[50]));
        assert_eq!(length(rows, 1, MEDIAN), low[50] as u64);
        assert_eq!(at_size(rows, 2 * size, MEDIAN), i64::from(high[50]));
        assert!(length(rows, 2 * size, MEDIAN) > 19 * high[50] as u64 / 10);
        let single: BySize = &[(64, &LAUNCH_EMPTY_CALL)];
        assert_eq!(length(single, 128, MEDIAN), LAUNCH_EMPTY_CALL[50] as u64);
    }

    /// The rows of starts were measured, too, and are not used by the model: it has to meet them.
    #[test]
    fn a_call_and_its_lead_come_from_one_draw_as_measured() {
        for (call, lead, start) in [
            (
                &LAUNCH_EMPTY_CALL,
                &LAUNCH_EMPTY_LEAD,
                &leads::LAUNCH_EMPTY_START_TO_START,
            ),
            (
                &leads::LAUNCH_EMPTY_AFTER_SLEEP_CALL,
                &leads::LAUNCH_EMPTY_AFTER_SLEEP_LEAD,
                &leads::LAUNCH_EMPTY_AFTER_SLEEP_START_TO_START,
            ),
        ] {
            let mut starts: Vec<i64> = (0..10_000)
                .map(|n| random(1, n))
                .map(|draw| at(call, draw) + at(lead, !draw))
                .collect();
            starts.sort_unstable();
            for quantile in [10, 25, 50, 75, 90] {
                let (drawn, measured) = (starts[quantile * 100], i64::from(start[quantile]));
                assert!(
                    (drawn - measured).abs() * 20 < measured,
                    "{quantile} %: {drawn}"
                );
            }
            // Unlike with two draws, none comes much earlier than the earliest that was seen.
            assert!(starts[0] > i64::from(start[0]) * 9 / 10, "{}", starts[0]);
        }
    }

    #[test]
    fn lengths_give_the_speeds_that_the_tables_are_said_to_have() {
        let gbps = |rows: BySize| {
            let ns = |bytes| length(rows, bytes, MEDIAN) as f64;
            let (small, large) = (rows[0].0, rows[rows.len() - 1].0);
            ((large - small) as f64 / (ns(large) - ns(small))).round()
        };
        assert_eq!(gbps(leads::HTOD_PINNED.length), 55.0);
        assert_eq!(gbps(leads::DTOH_PINNED.length), 55.0);
        assert_eq!(gbps(leads::HTOD_PAGEABLE_LARGE.length), 8.0);
        assert_eq!(gbps(leads::DTOH_PAGEABLE.length), 9.0);
        assert_eq!(gbps(leads::DTOD.length), 2_113.0);
        assert_eq!(gbps(leads::MEMSET.length), 4_545.0);
    }

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let one: Vec<u64> = (0..8).map(|n| random(7, n)).collect();
        let two: Vec<u64> = (0..8).map(|n| random(7, n)).collect();
        assert_eq!(one, two);
        assert_ne!(random(7, 0), random(8, 0));
    }
}
