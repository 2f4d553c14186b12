//! Scores nodes: more free space in the scarcest of the requested device classes is better.

use std::collections::BTreeMap;

use crate::extender::Annotations;

/// Formula from free space to score: `min(10, max(0, log2(capacity >> 30 / divisor)))`, cut to a whole number.
#[derive(Clone, Debug, PartialEq)]
pub struct Scoring {
    /// GiB that score 0 in a class without a divisor of its own; greater than 0.
    pub default_divisor: f64,
    /// The same by device class, the default class as `00default`.
    pub divisors: BTreeMap<String, f64>,
    /// Lowest score of a node that has any space: 0 as documented, 1 as TopoLVM since 0.1 does.
    pub minimum: u8,
}

impl Default for Scoring {
    fn default() -> Self {
        Self { default_divisor: 1.0, divisors: BTreeMap::new(), minimum: 0 }
    }
}

impl Scoring {
    /// The highest score that an extender may give.
    pub const HIGHEST: u8 = 10;

    /// Returns the divisor of a device class, in GiB.
    pub fn divisor(&self, class: &str) -> f64 {
        self.divisors.get(class).copied().unwrap_or(self.default_divisor)
    }

    /// Returns the score of free bytes.
    pub fn score(&self, free_bytes: u64, divisor: f64) -> u8 {
        if free_bytes == 0 {
            return 0;
        }
        let ratio = gibibytes(free_bytes) / divisor;
        // The largest whole n with 2^n <= ratio is log2 cut to a whole number, without rounding
        let score = (1..=Self::HIGHEST).rev().find(|&score| f64::from(1_u32 << score) <= ratio);
        score.unwrap_or(0).max(self.minimum)
    }

    /// Returns the score of a node: the lowest of the requested classes that it has, 0 if it has none. An annotation
    /// that is no number counts as no space.
    pub(crate) fn score_node(&self, capacity: &Annotations, requested: &BTreeMap<String, u64>) -> u8 {
        let scores = requested.keys().filter_map(|class| {
            let free = capacity.get(class)?.parse().unwrap_or(0);
            Some(self.score(free, self.divisor(class)))
        });
        scores.min().unwrap_or(0)
    }
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
        assert_eq!(scoring(0).score(free, divisor), documented);
        assert_eq!(scoring(1).score(free, divisor), at_least_one);
    }

    #[rstest]
    #[case::one_class(&[("a", "137438953472")], 6)]
    #[case::the_scarcest_counts(&[("a", "137438953472"), ("b", "17179869184")], 4)]
    #[case::classes_that_are_not_requested_do_not(&[("a", "137438953472"), ("c", "0")], 6)]
    #[case::none_of_the_classes(&[("c", "137438953472")], 0)]
    #[case::no_number(&[("a", "137438953472"), ("b", "foo")], 0)]
    fn a_node_scores_by_its_scarcest_requested_class(#[case] capacity: &[(&str, &str)], #[case] expected: u8) {
        let scoring = Scoring { divisors: BTreeMap::from([("a".to_owned(), 2.0)]), ..Scoring::default() };
        let capacity = capacity.iter().map(|&(class, free)| (class.to_owned(), free.to_owned())).collect();
        let requested = BTreeMap::from([("a".to_owned(), GIB), ("b".to_owned(), GIB)]);
        assert_eq!(scoring.score_node(&capacity, &requested), expected);
    }
}
