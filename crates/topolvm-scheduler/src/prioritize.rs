//! Scores nodes by the free space in the requested device classes: more is better, or less is.

use std::collections::BTreeMap;

use topolvm_api::NodeStrategy;

use crate::capacity::{Capacity, Free, Requested};

/// Formula from free space to score: `min(10, max(0, log2(capacity >> 30 / divisor)))`, cut to a whole number; with
/// [`NodeStrategy::Binpack`] ten less that of the capacity that is left.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    /// The nodes that are preferred.
    pub strategy: NodeStrategy,
    /// GiB that score 0 in a class without its own divisor; greater than 0.
    pub default_divisor: f64,
    /// The same by device class, the default class as `00default`.
    pub divisors: BTreeMap<String, f64>,
    /// Lowest score of a node that has any space: 0 as documented, 1 as TopoLVM since 0.1 does.
    pub minimum: u8,
}

impl Default for Scoring {
    fn default() -> Self {
        Self { strategy: NodeStrategy::default(), default_divisor: 1.0, divisors: BTreeMap::new(), minimum: 0 }
    }
}

impl Scoring {
    /// The highest score that an extender may give.
    pub const HIGHEST: u8 = 10;

    /// Returns the divisor of a device class, in GiB.
    pub fn divisor(&self, class: &str) -> f64 {
        self.divisors.get(class).copied().unwrap_or(self.default_divisor)
    }

    /// Returns the score of free bytes, of which so many are requested.
    pub fn score(&self, free_bytes: u64, requested_bytes: u64, divisor: f64) -> u8 {
        let score = match self.strategy {
            _ if free_bytes == 0 => return 0,
            NodeStrategy::Spread => logarithm(free_bytes, divisor),
            NodeStrategy::Binpack => match free_bytes.checked_sub(requested_bytes) {
                Some(left) => Self::HIGHEST - logarithm(left, divisor),
                None => 0,
            },
        };
        score.max(self.minimum)
    }

    /// Returns the score of a node, after the reservations of others: the lowest of the requested classes that it has,
    /// 0 if it has none. An annotation that is no number counts as no space.
    pub(crate) fn score_node(&self, capacity: &Capacity, requested: &Requested, reserved: impl Fn(&str) -> u64) -> u8 {
        let scores = requested.iter().filter_map(|(class, requested)| {
            let free = match capacity.free(class)? {
                Free::Bytes(free) => free.saturating_sub(reserved(class)),
                Free::Unreadable(_) => 0,
            };
            Some(self.score(free, *requested, self.divisor(class)))
        });
        scores.min().unwrap_or(0)
    }
}

/// Returns log2 of a number of bytes in GiB, divided by `divisor`, as a whole number from 0 to [`Scoring::HIGHEST`].
fn logarithm(bytes: u64, divisor: f64) -> u8 {
    let ratio = gibibytes(bytes) / divisor;
    // The largest whole n with 2^n <= ratio is log2 cut to a whole number, without rounding
    (1..=Scoring::HIGHEST).rev().find(|&score| f64::from(1_u32 << score) <= ratio).unwrap_or(0)
}

/// Whole GiB. Counts of 2^32 GiB and more are beyond every score with a sensible divisor.
fn gibibytes(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 30).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[rstest]
    #[case::nothing(0, 1.0, 0, 0)]
    #[case::one_byte(1, 1.0, 0, 1)]
    #[case::just_below_one_gib(GIB - 1, 1.0, 0, 1)]
    #[case::one_gib(GIB, 1.0, 0, 1)]
    #[case::two_gib(2 * GIB, 1.0, 1, 1)]
    #[case::just_below_four_gib(4 * GIB - 1, 1.0, 1, 1)]
    #[case::four_gib(4 * GIB, 1.0, 2, 2)]
    #[case::a_divisor_of_one(128 * GIB, 1.0, 7, 7)]
    #[case::a_divisor_of_two(128 * GIB, 2.0, 6, 6)]
    #[case::a_divisor_of_a_half(128 * GIB, 0.5, 8, 8)]
    #[case::less_than_the_divisor(GIB, 4.0, 0, 1)]
    #[case::the_highest(1024 * GIB, 1.0, 10, 10)]
    #[case::beyond_the_highest(u64::MAX, 1.0, 10, 10)]
    fn free_space_scores_as_documented_or_at_least_the_minimum(
        #[case] free: u64,
        #[case] divisor: f64,
        #[case] documented: u8,
        #[case] at_least_one: u8,
    ) {
        let scoring = |minimum| Scoring { minimum, ..Scoring::default() };
        assert_eq!(scoring(0).score(free, 0, divisor), documented);
        assert_eq!(scoring(1).score(free, 0, divisor), at_least_one);
    }

    #[rstest]
    #[case::nothing_is_left(8 * GIB, 8 * GIB, 1.0, 10)]
    #[case::less_than_the_divisor_is_left(10 * GIB, 8 * GIB, 4.0, 10)]
    #[case::two_gib_are_left(10 * GIB, 8 * GIB, 1.0, 9)]
    #[case::much_is_left(129 * GIB, GIB, 1.0, 3)]
    #[case::more_than_counts_is_left(u64::MAX, GIB, 1.0, 0)]
    #[case::it_does_not_fit(7 * GIB, 8 * GIB, 1.0, 0)]
    #[case::no_space(0, 0, 1.0, 0)]
    fn with_binpack_what_leaves_less_scores_higher(
        #[case] free: u64,
        #[case] requested: u64,
        #[case] divisor: f64,
        #[case] expected: u8,
    ) {
        let scoring = |minimum| Scoring { strategy: NodeStrategy::Binpack, minimum, ..Scoring::default() };
        assert_eq!(scoring(0).score(free, requested, divisor), expected);
        let at_least_one = if free == 0 { 0 } else { expected.max(1) };
        assert_eq!(scoring(1).score(free, requested, divisor), at_least_one);
    }

    #[rstest]
    #[case::one_class(&[("a", "137438953472")], 6)]
    #[case::the_scarcest_counts(&[("a", "137438953472"), ("b", "17179869184")], 4)]
    #[case::classes_that_are_not_requested_do_not(&[("a", "137438953472"), ("c", "0")], 6)]
    #[case::none_of_the_classes(&[("c", "137438953472")], 0)]
    #[case::no_number(&[("a", "137438953472"), ("b", "foo")], 0)]
    fn a_node_scores_by_its_scarcest_requested_class(#[case] capacity: &[(&str, &str)], #[case] expected: u8) {
        let scoring = Scoring { divisors: BTreeMap::from([("a".to_owned(), 2.0)]), ..Scoring::default() };
        let capacity = capacity.iter().copied().collect();
        let requested = BTreeMap::from([("a".to_owned(), GIB), ("b".to_owned(), GIB)]);
        assert_eq!(scoring.score_node(&capacity, &requested, |_| 0), expected);
    }
}
