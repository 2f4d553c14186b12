//! Decides whether and how far a claim grows. Pure.

use super::growing_claim::{ClaimSize, GrowthPolicy};

/// The sizes to which claims grow are multiples of this, as with pvc-autoresizer, unless the limit is none.
const STEP: u64 = 1 << 30;

/// Decision about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is large enough as far as is known, or an earlier growth has not ended.
    Wait,
    /// It is too small, and may not grow further.
    AtLimit,
    /// It is to have so many bytes.
    Grow(u64),
}

/// Decides about a claim whose volume has so many bytes. `too_small_at` is the size at which its agent has found the
/// volume to be too small: at another size it proves nothing about the present volume.
pub(super) fn decide(policy: GrowthPolicy, claim: ClaimSize, too_small_at: Option<u64>, volume_bytes: u64) -> Decision {
    let is_settled = !claim.is_resizing && claim.requested <= claim.capacity;
    if too_small_at != Some(volume_bytes) || !is_settled {
        return Decision::Wait;
    }
    // An increase of 0%, or of less than a byte, is one step
    let wanted = claim.capacity.saturating_add(policy.increase.of(claim.capacity).max(1));
    let target = wanted.checked_next_multiple_of(STEP).unwrap_or(policy.limit).min(policy.limit);
    if target > claim.capacity { Decision::Grow(target) } else { Decision::AtLimit }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use topolvm_api::{Amount, GrowthThresholds};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn policy(limit: u64, increase: Amount) -> GrowthPolicy {
        let thresholds = GrowthThresholds { space: Amount::DEFAULT, inodes: Amount::DEFAULT };
        GrowthPolicy { limit, increase, thresholds }
    }

    fn settled(bytes: u64) -> ClaimSize {
        ClaimSize { requested: bytes, capacity: bytes, is_resizing: false }
    }

    #[rstest]
    #[case::up_to_whole_gib(10 * GIB, Amount::Share(1000), 100 * GIB, Decision::Grow(11 * GIB))]
    #[case::rounded_up(10 * GIB, Amount::Share(1100), 100 * GIB, Decision::Grow(12 * GIB))]
    #[case::by_nothing(10 * GIB, Amount::Share(0), 100 * GIB, Decision::Grow(11 * GIB))]
    #[case::by_a_size(10 * GIB, Amount::Bytes(5 * GIB), 100 * GIB, Decision::Grow(15 * GIB))]
    #[case::up_to_the_limit(10 * GIB, Amount::Share(5000), 12 * GIB + 1, Decision::Grow(12 * GIB + 1))]
    #[case::at_the_limit(10 * GIB, Amount::Share(5000), 10 * GIB, Decision::AtLimit)]
    #[case::above_the_limit(10 * GIB, Amount::Share(5000), 5 * GIB, Decision::AtLimit)]
    fn a_claim_that_is_too_small_grows_by_its_increase(
        #[case] bytes: u64,
        #[case] increase: Amount,
        #[case] limit: u64,
        #[case] expected: Decision,
    ) {
        assert_eq!(decide(policy(limit, increase), settled(bytes), Some(bytes), bytes), expected);
    }

    #[rstest]
    #[case::large_enough(settled(GIB), None)]
    #[case::said_of_a_smaller_volume(settled(GIB), Some(GIB - 1))]
    #[case::requested(ClaimSize { requested: 2 * GIB, ..settled(GIB) }, Some(GIB))]
    #[case::not_ended(ClaimSize { is_resizing: true, ..settled(GIB) }, Some(GIB))]
    fn nothing_is_asked_for_before_an_earlier_growth_has_ended(
        #[case] claim: ClaimSize,
        #[case] too_small_at: Option<u64>,
    ) {
        assert_eq!(decide(policy(5 * GIB, Amount::DEFAULT), claim, too_small_at, GIB), Decision::Wait);
    }

    fn amounts() -> impl Strategy<Value = Amount> {
        prop_oneof![(0..=10_000_u32).prop_map(Amount::Share), (1..u64::MAX >> 1).prop_map(Amount::Bytes)]
    }

    proptest! {
        #[test]
        fn no_claim_grows_beyond_its_limit_or_shrinks_or_grows_twice(
            limit in 1..u64::MAX >> 1,
            increase in amounts(),
            requested in 1..u64::MAX >> 1,
            capacity in 1..u64::MAX >> 1,
            is_resizing in any::<bool>(),
            too_small_at in prop::option::of(1..u64::MAX >> 1),
            is_current in any::<bool>(),
        ) {
            let claim = ClaimSize { requested, capacity, is_resizing };
            let too_small_at = if is_current { Some(capacity) } else { too_small_at };
            if let Decision::Grow(target) = decide(policy(limit, increase), claim, too_small_at, capacity) {
                prop_assert!(target <= limit && target > capacity && target > requested);
                prop_assert!(!is_resizing && requested <= capacity && too_small_at == Some(capacity));
            }
        }

        /// A volume that is always too small stops at its limit, after no more steps than there are GiB up to it.
        #[test]
        fn growth_ends_at_the_limit(
            start in 1..50 * GIB,
            limit in 1..200 * GIB,
            increase in amounts(),
        ) {
            let policy = policy(limit, increase);
            let (mut bytes, mut steps) = (start, 0);
            while let Decision::Grow(target) = decide(policy, settled(bytes), Some(bytes), bytes) {
                bytes = target;
                steps += 1;
                prop_assert!(steps <= limit / GIB + 1);
            }
            prop_assert_eq!(decide(policy, settled(bytes), Some(bytes), bytes), Decision::AtLimit);
            prop_assert_eq!(bytes, start.max(limit));
        }
    }
}
