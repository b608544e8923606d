//! Quantities with their units, and the only code that formats them.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

/// Nanoseconds: a length of time, or an instant of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    pub const ZERO: Nanos = Nanos(0);
    pub const MAX: Nanos = Nanos(u64::MAX);

    pub const fn from_micros(us: u64) -> Self {
        Nanos(us * 1_000)
    }

    pub const fn from_millis(ms: u64) -> Self {
        Nanos(ms * 1_000_000)
    }

    pub const fn from_secs(s: u64) -> Self {
        Nanos(s * 1_000_000_000)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `self - other`, or zero when `other` is later.
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }

    /// For sums over what comes from outside.
    pub const fn saturating_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }

    /// Share of `whole`, 0 to 1; 0 of nothing is 0.
    #[allow(clippy::cast_precision_loss)]
    pub fn share_of(self, whole: Nanos) -> f64 {
        if whole.0 == 0 {
            0.0
        } else {
            self.0 as f64 / whole.0 as f64
        }
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, rhs: Nanos) -> Nanos {
        Nanos(self.0 + rhs.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, rhs: Nanos) {
        self.0 += rhs.0;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    /// Panics in debug builds when `rhs` is later; use [`Nanos::saturating_sub`] on input.
    fn sub(self, rhs: Nanos) -> Nanos {
        Nanos(self.0 - rhs.0)
    }
}

impl std::iter::Sum for Nanos {
    fn sum<I: Iterator<Item = Nanos>>(iter: I) -> Nanos {
        iter.fold(Nanos::ZERO, Add::add)
    }
}

impl fmt::Display for Nanos {
    /// Three significant digits with the unit that fits: `950 ns`, `12.3 us`, `4.56 ms`, `1.20 s`.
    #[allow(clippy::cast_precision_loss)]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let text = if n < 1_000 {
            format!("{n} ns")
        } else {
            let (value, unit) = match n {
                0..1_000_000 => (n as f64 / 1e3, "us"),
                1_000_000..1_000_000_000 => (n as f64 / 1e6, "ms"),
                _ => (n as f64 / 1e9, "s"),
            };
            let digits = if value < 9.995 {
                2
            } else if value < 99.95 {
                1
            } else {
                0
            };
            format!("{value:.digits$} {unit}")
        };
        f.pad(&text)
    }
}

impl FromStr for Nanos {
    type Err = String;

    /// `10s`, `250ms`, `20us`, `500ns`, `2m`, `1.5s`.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let bad = || format!("'{s}' is not a duration: write it as 10s, 250ms, 20us or 2m");
        let split = s
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(bad)?;
        let (number, unit) = s.split_at(split);
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            _ => return Err(bad()),
        };
        let value: f64 = number.parse().map_err(|_| bad())?;
        let ns = value * scale;
        if !(0.0..=9.2e18).contains(&ns) {
            return Err(bad());
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Ok(Nanos(ns.round() as u64))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    #[allow(clippy::cast_precision_loss)]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.1} {}", UNITS[unit]))
    }
}

/// A share between 0 and 1, shown as a percentage of what the caller names.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pct = self.0 * 100.0;
        // Never round a part up to all, nor something down to nothing.
        let text = if pct > 0.0 && pct < 0.05 {
            "<0.1 %".to_string()
        } else if pct > 99.95 && pct < 100.0 {
            ">99.9 %".to_string()
        } else {
            format!("{pct:.1} %")
        };
        f.pad(&text)
    }
}

/// A count with thin grouping: `12,345`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(pub u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        let mut text = String::with_capacity(digits.len() + digits.len() / 3);
        for (i, c) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                text.push(',');
            }
            text.push(c);
        }
        f.pad(&text)
    }
}

/// Events a second, with three significant digits: `0.25`, `18.2`, `182`, `1.82 k`. The caller says what of, and `/s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Rate(pub f64);

impl Rate {
    /// `None` over no time.
    #[allow(clippy::cast_precision_loss)]
    pub fn of(count: u64, time: Nanos) -> Option<Rate> {
        (time > Nanos::ZERO).then(|| Rate(count as f64 * 1e9 / time.0 as f64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0;
        let mut units = ["", " k", " M", " G"].into_iter();
        let mut unit = units.next().unwrap_or_default();
        while value >= 999.5 {
            let Some(next) = units.next() else { break };
            value /= 1e3;
            unit = next;
        }
        // Never something down to nothing.
        let text = if value == 0.0 {
            "0".to_string()
        } else if value < 0.005 {
            "<0.01".to_string()
        } else {
            let digits = if value < 9.995 {
                2
            } else if value < 99.95 {
                1
            } else {
                0
            };
            format!("{value:.digits$}{unit}")
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_show_three_significant_digits() {
        for (rate, text) in [
            (0.0, "0"),
            (0.001, "<0.01"),
            (0.25, "0.25"),
            (18.24, "18.2"),
            (182.4, "182"),
            (999.4, "999"),
            (999.5, "1.00 k"),
            (1_824.0, "1.82 k"),
            (141_000.0, "141 k"),
            (2.64e6, "2.64 M"),
            (7.2e12, "7200 G"),
        ] {
            assert_eq!(Rate(rate).to_string(), text);
        }
        assert_eq!(Rate::of(5, Nanos::from_secs(10)), Some(Rate(0.5)));
        assert_eq!(Rate::of(5, Nanos::ZERO), None);
    }

    #[test]
    fn nanos_show_three_significant_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (950, "950 ns"),
            (1_000, "1.00 us"),
            (12_345, "12.3 us"),
            (999_949, "1000 us"),
            (4_560_000, "4.56 ms"),
            (123_456_789, "123 ms"),
            (1_200_000_000, "1.20 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(Nanos(ns).to_string(), text);
        }
        assert_eq!(format!("{:>9}", Nanos(950)), "   950 ns");
    }

    #[test]
    fn durations_parse_with_their_unit_only() {
        assert_eq!("10s".parse(), Ok(Nanos::from_secs(10)));
        assert_eq!("1.5s".parse(), Ok(Nanos::from_millis(1500)));
        assert_eq!("250ms".parse(), Ok(Nanos::from_millis(250)));
        assert_eq!("20us".parse(), Ok(Nanos::from_micros(20)));
        for bad in ["", "10", "s", "-1s", "1x", "1.2.3s", "99999999h", "NaNs"] {
            assert!(bad.parse::<Nanos>().is_err(), "{bad}");
        }
    }

    #[test]
    fn shares_never_round_to_a_false_all_or_nothing() {
        assert_eq!(Share(0.0).to_string(), "0.0 %");
        assert_eq!(Share(0.0001).to_string(), "<0.1 %");
        assert_eq!(Share(0.99999).to_string(), ">99.9 %");
        assert_eq!(Share(1.0).to_string(), "100.0 %");
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!(Count(0).to_string(), "0");
        assert_eq!(Count(1_234).to_string(), "1,234");
        assert_eq!(Count(12_345_678).to_string(), "12,345,678");
    }

    #[test]
    fn bytes_change_unit_before_the_number_grows_long() {
        assert_eq!(Bytes(1023).to_string(), "1023 B");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(38_200_000).to_string(), "36.4 MiB");
    }
}
