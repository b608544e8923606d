//! Whether CUPTI's records still come to us.
//!
//! Whoever registers buffer callbacks last gets the records, and nobody is told. So the shim makes
//! a harmless CUDA call before each flush, and looks whether its record comes back.
//!
//! Since CUDA 13 threads have buffers of their own. The shim's holds nothing but such calls, so
//! that a flush gives it back whatever the device does, and silence means that another tool has
//! the records. Before, all threads share a buffer, and a kernel that runs holds the answer back:
//! then nothing is lost, and silence means something only when it lasts or when no answer can come
//! any more.

const MS: u64 = 1_000_000;

/// So many answers have to stay away in a row where nothing can hold them back…
const UNANSWERED: u32 = 2;
/// …and for so long where a kernel can.
const SILENT_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Records come, as far as can be known.
    Good,
    /// Another tool has them, or one kernel keeps them all from completing.
    Suspect,
    /// Another tool has them.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Watch {
    own_buffer: bool,
    /// Records of our calls do come back in this process.
    works: bool,
    /// Something came back since collecting began.
    heard: bool,
    /// Up to here all records came (CUPTI's clock).
    good_until: u64,
    /// Calls since something came back, and when the first of them was made (CLOCK_MONOTONIC ns).
    unanswered: u32,
    silent_since: u64,
}

impl Watch {
    /// Collecting begins at `start` (CUPTI's clock). `own_buffer`: threads have buffers of their
    /// own. `works`: the record of such a call came back before.
    pub(crate) fn new(own_buffer: bool, works: bool, start: u64) -> Watch {
        Watch {
            own_buffer,
            works,
            heard: false,
            good_until: start,
            unanswered: 0,
            silent_since: 0,
        }
    }

    /// A call was made (CLOCK_MONOTONIC ns).
    pub(crate) fn asked(&mut self, now: u64) {
        if self.unanswered == 0 {
            self.silent_since = now;
        }
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// The record of a call that was made at `time` (CUPTI's clock) came back.
    pub(crate) fn answered(&mut self, time: u64) {
        self.works = true;
        self.good_until = self.good_until.max(time);
        self.heard();
    }

    /// Buffers came back. With other records than ours they do not say that all did.
    pub(crate) fn heard(&mut self) {
        self.heard = true;
        self.unanswered = 0;
    }

    pub(crate) fn good_until(&self) -> u64 {
        self.good_until
    }

    /// A call is not answered yet, and its answer is to be expected.
    pub(crate) fn is_silent(&self) -> bool {
        self.unanswered > 0 && (self.works || !self.heard)
    }

    /// After a flush, at `now` (CLOCK_MONOTONIC ns).
    pub(crate) fn judge(&self, now: u64) -> Verdict {
        let silent = now.saturating_sub(self.silent_since);
        if !self.is_silent() {
            Verdict::Good
        } else if self.own_buffer && self.unanswered >= UNANSWERED {
            Verdict::Gone
        } else if !self.own_buffer && silent >= SILENT_MS * MS {
            Verdict::Suspect
        } else {
            Verdict::Good
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000;

    /// Asked at `times` (ms), and what is thought of it after each flush.
    fn silence(watch: &mut Watch, times: &[u64]) -> Vec<Verdict> {
        let judge = |time: &u64| {
            watch.asked(time * MS);
            watch.judge(time * MS)
        };
        times.iter().map(judge).collect()
    }

    #[test]
    fn all_is_good_up_to_the_last_answer() {
        let mut watch = Watch::new(true, false, START);
        assert_eq!(watch.good_until(), START);
        watch.asked(0);
        watch.answered(2_000);
        assert_eq!((watch.good_until(), watch.is_silent()), (2_000, false));
        watch.asked(1);
        assert_eq!((watch.good_until(), watch.is_silent()), (2_000, true));
        watch.heard();
        assert_eq!((watch.good_until(), watch.is_silent()), (2_000, false));
        // An answer that was held back is no news.
        watch.answered(1_500);
        assert_eq!(watch.good_until(), 2_000);
    }

    #[test]
    fn with_a_buffer_of_its_own_no_answer_stays_away_by_chance() {
        let mut watch = Watch::new(true, true, START);
        let verdicts = silence(&mut watch, &[0, 250, 500]);
        assert_eq!(verdicts, [Verdict::Good, Verdict::Gone, Verdict::Gone]);
    }

    #[test]
    fn in_a_shared_buffer_a_long_kernel_is_not_told_from_another_tool() {
        let mut watch = Watch::new(false, true, START);
        let verdicts = silence(&mut watch, &[100, 350, 3_099, 3_100]);
        assert_eq!(verdicts[..3], [Verdict::Good; 3]);
        assert_eq!(verdicts[3], Verdict::Suspect);
        // The kernel ends, and all records come.
        watch.answered(5_000);
        assert_eq!(watch.judge(4_000 * MS), Verdict::Good);
        assert_eq!(silence(&mut watch, &[4_000, 6_999]), [Verdict::Good; 2]);
    }

    #[test]
    fn where_calls_leave_no_record_silence_says_nothing() {
        let mut watch = Watch::new(true, false, START);
        watch.heard();
        assert_eq!(silence(&mut watch, &[0, 250, 500]), [Verdict::Good; 3]);
        assert!(!watch.is_silent());
    }

    #[test]
    fn a_tool_that_comes_before_the_first_answer_is_noticed() {
        let mut watch = Watch::new(true, false, START);
        assert_eq!(silence(&mut watch, &[0, 250])[1], Verdict::Gone);
        assert_eq!(watch.good_until(), START);
    }
}
