//! How long launches take, and how long after them the device starts: the numbers
//! that the simulated device plays back, all in this file.
//!
//! PLACEHOLDERS. The shape is made up; the anchors are measurements on an H200
//! (bare launch loop 3.6–3.9 µs a call, launch to kernel start at least 4.6 µs and
//! about 7 µs in the mean). To be replaced by the quantiles of a real recording,
//! so that the analysis is not tuned to its own simulator.
//!
//! A table is a sorted list of ns at the quantiles 0 %, 1 %, … 100 %.

pub type Quantiles = [i32; 101];

/// From the start of `cuLaunchKernel` to its end.
pub const LAUNCH_CALL: Quantiles = [
    3600, 3605, 3609, 3613, 3617, 3620, 3623, 3626, 3629, 3632, 3634, 3637, 3639, 3642, 3644, 3646,
    3649, 3651, 3653, 3655, 3657, 3660, 3662, 3664, 3666, 3668, 3670, 3672, 3674, 3676, 3678, 3680,
    3682, 3684, 3686, 3688, 3690, 3692, 3694, 3696, 3698, 3700, 3702, 3704, 3706, 3708, 3710, 3712,
    3714, 3716, 3718, 3720, 3722, 3724, 3727, 3729, 3731, 3733, 3735, 3738, 3740, 3742, 3745, 3747,
    3750, 3752, 3755, 3757, 3760, 3763, 3766, 3769, 3772, 3775, 3778, 3781, 3785, 3788, 3792, 3796,
    3800, 3804, 3808, 3813, 3818, 3823, 3829, 3835, 3841, 3848, 3856, 3865, 3875, 3886, 3899, 3915,
    3940, 3980, 4060, 4350, 9800,
];

/// Lead: from the end of a launch call to the start of its kernel on an empty device.
/// May be negative; an operation never starts before its call.
pub const LEAD: Quantiles = [
    4600, 4690, 4760, 4820, 4880, 4930, 4980, 5020, 5070, 5110, 5150, 5190, 5230, 5260, 5300, 5330,
    5370, 5400, 5430, 5470, 5500, 5530, 5560, 5590, 5620, 5650, 5680, 5710, 5740, 5770, 5800, 5830,
    5860, 5890, 5920, 5950, 5980, 6010, 6040, 6080, 6110, 6140, 6170, 6200, 6240, 6270, 6300, 6340,
    6370, 6410, 6440, 6480, 6520, 6550, 6590, 6630, 6670, 6710, 6750, 6790, 6830, 6880, 6920, 6970,
    7010, 7060, 7110, 7160, 7220, 7270, 7330, 7390, 7450, 7510, 7580, 7650, 7720, 7800, 7880, 7960,
    8050, 8150, 8250, 8360, 8480, 8600, 8740, 8890, 9050, 9230, 9430, 9660, 9920, 10220, 10580,
    11010, 11560, 12300, 13400, 15600, 24000,
];

/// From the end of an operation to the start of the next one in its stream, when that was queued ahead.
pub const SUCCESSION: Quantiles = [
    880, 900, 915, 928, 940, 950, 959, 968, 976, 984, 991, 998, 1004, 1010, 1016, 1022, 1027, 1032,
    1037, 1042, 1047, 1051, 1056, 1060, 1064, 1068, 1072, 1076, 1080, 1084, 1088, 1092, 1096, 1100,
    1104, 1108, 1112, 1116, 1120, 1124, 1128, 1132, 1136, 1140, 1144, 1148, 1152, 1156, 1160, 1164,
    1168, 1172, 1176, 1180, 1184, 1189, 1193, 1198, 1202, 1207, 1212, 1217, 1222, 1227, 1232, 1238,
    1243, 1249, 1255, 1261, 1267, 1274, 1280, 1287, 1294, 1302, 1310, 1318, 1326, 1335, 1344, 1354,
    1364, 1375, 1387, 1399, 1412, 1426, 1441, 1458, 1476, 1496, 1519, 1545, 1575, 1610, 1653, 1710,
    1790, 1930, 2600,
];

/// From the end of the device's work to the return of a call that spins for it.
pub const SYNC_RETURN_NS: u64 = 2_600;

/// What other calls cost: events, queries, attributes.
pub const CALL_NS: u64 = 700;

/// What a copy or memset costs to submit.
pub const COPY_CALL_NS: u64 = 4_200;

/// What a copy takes before its first byte moves.
pub const COPY_SETUP_NS: u64 = 1_300;

/// What a memset takes besides its bytes, and how many bytes a microsecond it writes.
pub const MEMSET_SETUP_NS: u64 = 1_500;
pub const MEMSET_BYTES_PER_US: u64 = 2_000_000;

/// The value at a quantile: `at` is a fraction of 2^64.
pub fn draw(table: &Quantiles, at: u64) -> i64 {
    // The top 7 bits times 100 pick the step, the rest interpolates inside it.
    let scaled = u128::from(at) * 100;
    let index = (scaled >> 64) as usize;
    let fraction = (scaled & u128::from(u64::MAX)) >> 32;
    let low = i64::from(table[index]);
    // Both factors have at most 32 bits.
    let rise = u64::from(table[index + 1].abs_diff(table[index]));
    low + ((u128::from(rise) * fraction) >> 32) as i64
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

    #[test]
    fn tables_are_sorted() {
        for table in [&LAUNCH_CALL, &LEAD, &SUCCESSION] {
            assert!(table.is_sorted());
        }
    }

    #[test]
    fn draws_stay_inside_the_table_and_hit_its_ends() {
        assert_eq!(draw(&LEAD, 0), i64::from(LEAD[0]));
        assert_eq!(draw(&LEAD, u64::MAX), i64::from(LEAD[100]) - 1);
        assert_eq!(draw(&LEAD, 1 << 63), i64::from(LEAD[50]));
    }

    #[test]
    fn mean_lead_is_about_seven_microseconds() {
        let n = 10_000;
        let sum: i64 = (0..n).map(|i| draw(&LEAD, random(1, i))).sum();
        let mean = sum / n as i64;
        assert!((6_700..7_500).contains(&mean), "{mean}");
    }

    #[test]
    fn the_same_seed_gives_the_same_sequence() {
        let one: Vec<u64> = (0..8).map(|n| random(7, n)).collect();
        let two: Vec<u64> = (0..8).map(|n| random(7, n)).collect();
        assert_eq!(one, two);
        assert_ne!(random(7, 0), random(8, 0));
    }
}
