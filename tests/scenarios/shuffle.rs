//! The order of the cases is another one each time, and can be had again.

/// splitmix64
#[derive(Debug)]
pub struct Shuffle(u64);

impl Shuffle {
    /// By GDIAG_SEED, or the clock.
    pub fn new() -> (Shuffle, u64) {
        let seed = match std::env::var("GDIAG_SEED") {
            Ok(text) => text
                .parse()
                .unwrap_or_else(|_| panic!("GDIAG_SEED={text} is no number")),
            Err(_) => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(1, |since| since.as_secs()),
        };
        (Shuffle(seed), seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn list<T>(&mut self, list: &mut [T]) {
        for i in 1..list.len() {
            let below = (i + 1) as u64;
            let j = usize::try_from(self.next() % below).unwrap_or(i);
            list.swap(i, j);
        }
    }
}
