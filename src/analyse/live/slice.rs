use super::Slice;
use crate::model::Timeline;
use crate::units::Nanos;
#[derive(Clone, Debug, Default)]
pub struct SliceOptions {}
pub fn slice(t: &Timeline, from: Nanos, to: Nanos, _o: &SliceOptions) -> Slice {
    let _ = (t, from, to);
    Slice {
        from,
        to,
        report: crate::analyse::report(t, &crate::analyse::Options::default()),
        sched: crate::analyse::sched::Summary::default(),
        calls: crate::analyse::syscalls::Summary {
            measure: crate::analyse::syscalls::Measure::Waits,
            start: from,
            end: to,
            threads: vec![],
            gpu: false,
            notes: vec![],
        },
        launches: vec![],
        cuda: vec![],
        stacks: vec![],
        events: 0,
        lost: 0,
    }
}
impl super::Window {
    pub fn of(slices: &[std::sync::Arc<Slice>]) -> super::Window {
        let last = slices.last().unwrap();
        super::Window {
            from: slices[0].from,
            to: last.to,
            report: last.report.clone(),
            sched: last.sched.clone(),
            calls: last.calls.clone(),
            launches: vec![],
            cuda: vec![],
            stacks: vec![],
            events: slices.iter().map(|s| s.events).sum(),
            lost: 0,
            points: vec![],
        }
    }
}
