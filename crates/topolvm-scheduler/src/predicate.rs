//! Filters nodes by free space.

use crate::capacity::{Capacity, Free, Requested};

/// Reason for which a node is filtered out. Events contain the texts, and users' scripts search for them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterReason {
    /// The node does not have the device class.
    #[error("no capacity annotation")]
    NoAnnotation,
    #[error("bad capacity annotation: {0}")]
    BadAnnotation(String),
    #[error("out of VG free space")]
    Full,
    /// kube-scheduler sent the name of a node that the watch has not shown yet.
    #[error("topolvm-scheduler has not received this Node yet")]
    UnknownNode,
}

/// Checks that a node has the requested bytes free in every device class, after those that are reserved for others.
pub(crate) fn check_node(
    capacity: &Capacity,
    requested: &Requested,
    reserved: impl Fn(&str) -> u64,
) -> Result<(), FilterReason> {
    for (class, requested) in requested {
        match capacity.free(class) {
            Some(Free::Bytes(free)) if free.saturating_sub(reserved(class)) >= *requested => {}
            Some(Free::Bytes(_)) => return Err(FilterReason::Full),
            Some(Free::Unreadable(text)) => return Err(FilterReason::BadAnnotation(text.to_string())),
            None => return Err(FilterReason::NoAnnotation),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[rstest]
    #[case::nothing_requested(&[], &[], Ok(()))]
    #[case::enough(&[("a", "2147483648")], &[("a", GIB)], Ok(()))]
    #[case::exactly_enough(&[("a", "1073741824")], &[("a", GIB)], Ok(()))]
    #[case::too_little(&[("a", "1073741823")], &[("a", GIB)], Err(FilterReason::Full))]
    #[case::zero_requested_of_nothing(&[("a", "0")], &[("a", 0)], Ok(()))]
    #[case::zero_requested_of_a_class_that_the_node_lacks(&[], &[("a", 0)], Err(FilterReason::NoAnnotation))]
    #[case::other_class_only(&[("b", "2147483648")], &[("a", GIB)], Err(FilterReason::NoAnnotation))]
    #[case::no_number(&[("a", "foo")], &[("a", GIB)], Err(FilterReason::BadAnnotation("foo".to_owned())))]
    #[case::negative(&[("a", "-1")], &[("a", GIB)], Err(FilterReason::BadAnnotation("-1".to_owned())))]
    #[case::two_classes(&[("a", "2147483648"), ("b", "2147483648")], &[("a", GIB), ("b", GIB)], Ok(()))]
    #[case::one_of_two_full(&[("a", "2147483648"), ("b", "1")], &[("a", GIB), ("b", GIB)], Err(FilterReason::Full))]
    #[case::one_of_two_missing(&[("a", "2147483648")], &[("a", GIB), ("b", GIB)], Err(FilterReason::NoAnnotation))]
    fn a_node_fits_when_every_class_has_space(
        #[case] capacity: &[(&str, &str)],
        #[case] requested: &[(&str, u64)],
        #[case] expected: Result<(), FilterReason>,
    ) {
        let capacity = capacity.iter().copied().collect();
        let requested = requested.iter().map(|&(class, bytes)| (class.to_owned(), bytes)).collect();
        assert_eq!(check_node(&capacity, &requested, |_| 0), expected);
    }

    #[test]
    fn the_reasons_are_those_that_users_look_for() {
        assert_eq!(FilterReason::NoAnnotation.to_string(), "no capacity annotation");
        assert_eq!(FilterReason::BadAnnotation("foo".to_owned()).to_string(), "bad capacity annotation: foo");
        assert_eq!(FilterReason::Full.to_string(), "out of VG free space");
    }
}
