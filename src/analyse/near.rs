//! Searching in order of time: the next thing looked up is near the last one.
#![forbid(unsafe_code)]

/// As [`slice::partition_point`], from `near` on: quick when the answer is close to it.
pub(super) fn partition_near<T>(list: &[T], near: usize, is_before: impl Fn(&T) -> bool) -> usize {
    let at = near.min(list.len());
    let mut step = 1;
    if at > 0 && !is_before(&list[at - 1]) {
        while step < at && !is_before(&list[at - 1 - step]) {
            step *= 2;
        }
        let low = at.saturating_sub(1 + step);
        low + list[low..at].partition_point(is_before)
    } else {
        while at + step <= list.len() && is_before(&list[at + step - 1]) {
            step *= 2;
        }
        let low = at + step / 2;
        let high = list.len().min(at + step);
        low + list[low..high].partition_point(is_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_does_not_depend_on_where_the_search_begins() {
        for len in 0..40 {
            let list: Vec<usize> = (0..len).collect();
            for before in 0..=len + 1 {
                for near in 0..=len + 2 {
                    let found = partition_near(&list, near, |&n| n < before);
                    assert_eq!(
                        found,
                        list.partition_point(|&n| n < before),
                        "{len} {before} {near}"
                    );
                }
            }
        }
    }
}
