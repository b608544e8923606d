//! How many operations a program repeats again and again, such as those of a training step.
//!
//! Found only where the operations themselves say so: they come in the same order over and over, or every
//! wait for the device comes after the same number of them. Otherwise nobody can tell a step, and none is told.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::Hash;

/// Repetitions without which a pattern is none.
const LEAST: usize = 16;

/// This share of operations must be the ones that were there a step before.
const SAME: f64 = 0.9;

/// A shorter pattern with nearly the same share is the step; a longer one is several.
const NEARLY: f64 = 0.995;

/// Operations to look at; a pattern that takes more to be seen is longer than anybody would call a step.
pub(super) const MOST: usize = 200_000;

/// Patterns tried, those of the most frequent operations first.
const TRIES: usize = 32;

/// Operations in a step. `kinds` are the operations in order, equal where they do the same; `waits` are how many of them
/// had been started when a wait for the device was over, in order.
pub(super) fn length<K: Copy + Eq + Hash>(kinds: &[K], waits: &[usize]) -> Option<u64> {
    repeated(kinds).or_else(|| between(waits)).map(|n| n as u64)
}

/// The shortest distance at which nearly every operation is the same as before.
fn repeated<K: Copy + Eq + Hash>(kinds: &[K]) -> Option<usize> {
    let mut places: HashMap<K, Vec<usize>> = HashMap::new();
    for (i, kind) in kinds.iter().enumerate() {
        places.entry(*kind).or_default().push(i);
    }
    if places.len() < 2 {
        return None;
    }
    let mut distances: Vec<(usize, usize)> = (places.values())
        .filter_map(|places| Some((common_step(places)?, places.len())))
        .collect();
    distances.sort_by_key(|&(distance, count)| (std::cmp::Reverse(count), distance));
    let mut seen = Vec::new();
    for (distance, _) in distances {
        if distance > 1 && !seen.contains(&distance) && seen.len() < TRIES {
            seen.push(distance);
        }
    }
    seen.sort_unstable();
    let shares: Vec<(usize, f64)> = seen.into_iter().map(|d| (d, same(kinds, d))).collect();
    let best = shares.iter().map(|s| s.1).fold(0.0, f64::max);
    let good = |&&(_, share): &&(usize, f64)| share >= SAME && share >= NEARLY * best;
    shares.iter().find(good).map(|s| s.0)
}

/// Share of operations that are what was `distance` before them.
#[allow(clippy::cast_precision_loss)]
fn same<K: Copy + Eq>(kinds: &[K], distance: usize) -> f64 {
    let pairs = kinds.iter().zip(kinds.iter().skip(distance));
    let count = kinds.len().saturating_sub(distance);
    if count / distance < LEAST {
        return 0.0;
    }
    pairs.filter(|(a, b)| a == b).count() as f64 / count as f64
}

/// Operations from one wait to the next, where these are nearly always as many.
fn between(waits: &[usize]) -> Option<usize> {
    let mut places = waits.to_vec();
    // Two waits in a row are one.
    places.dedup();
    common_step(&places).filter(|&step| step > 1)
}

/// The usual distance of neighbours.
#[allow(clippy::cast_precision_loss)]
fn common_step(places: &[usize]) -> Option<usize> {
    if places.len() <= LEAST {
        return None;
    }
    let mut steps: Vec<usize> = places
        .windows(2)
        .map(|w| w[1].saturating_sub(w[0]))
        .collect();
    steps.sort_unstable();
    // Whatever is nearly all of them is in the middle.
    let usual = steps[steps.len() / 2];
    let count = steps.iter().filter(|step| **step == usual).count();
    (count as f64 >= SAME * steps.len() as f64).then_some(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(step: &[u32], times: usize) -> Vec<u32> {
        step.iter()
            .copied()
            .cycle()
            .take(step.len() * times)
            .collect()
    }

    #[test]
    fn operations_in_the_same_order_are_a_step() {
        assert_eq!(length(&repeat(&[1, 2, 3], 20), &[]), Some(3));
        // One that comes several times in it does not make it shorter.
        assert_eq!(length(&repeat(&[1, 2, 1, 3, 1, 4, 1, 1], 20), &[]), Some(8));
        let layers: Vec<u32> = [vec![100], repeat(&[1, 2, 3, 4], 6), vec![101, 102]].concat();
        assert_eq!(length(&repeat(&layers, 40), &[]), Some(27));
    }

    #[test]
    fn what_comes_now_and_then_does_not_make_it_longer() {
        let (mut kinds, mut n) = (Vec::new(), 7u32);
        for _ in 0..400 {
            kinds.extend(repeat(&[1, 2, 3, 4], 10));
            kinds.push(9);
            n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if n >> 28 == 0 {
                kinds.push(77);
            }
        }
        assert_eq!(length(&kinds, &[]), Some(41));
    }

    #[test]
    fn waits_tell_the_step_of_operations_that_are_all_the_same() {
        let kinds = vec![1; 2_000];
        let waits: Vec<usize> = (1..=100).flat_map(|i| [i * 20, i * 20]).collect();
        assert_eq!(length(&kinds, &waits), Some(20));
        assert_eq!(length(&kinds, &[]), None);
        // After every operation: that is no step.
        let each: Vec<usize> = (1..=100).collect();
        assert_eq!(length(&kinds, &each), None);
    }

    #[test]
    fn without_a_pattern_there_is_no_step() {
        let mut n = 1u32;
        let random: Vec<u32> = (0..5_000)
            .map(|_| {
                n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                n >> 29
            })
            .collect();
        let waits: Vec<usize> = (0..300).map(|i| i * 7 + random[i] as usize).collect();
        assert_eq!(length(&random, &waits), None);
        assert_eq!(length(&repeat(&[1, 2, 3], 15), &[]), None);
        assert_eq!(length::<u32>(&[], &[]), None);
    }
}
