//! Filters nodes by free space.

use std::collections::BTreeMap;

use crate::extender::Annotations;

/// Reason for which a node is filtered out. The texts are shown in events and looked for by users' scripts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FilterReason {
    /// The node does not have the device class.
    #[error("no capacity annotation")]
    NoAnnotation,
    #[error("bad capacity annotation: {0}")]
    BadAnnotation(String),
    #[error("out of VG free space")]
    Full,
}

/// Checks that a node has the requested bytes free in every device class.
pub(crate) fn check_node(capacity: &Annotations, requested: &BTreeMap<String, u64>) -> Result<(), FilterReason> {
    for (class, requested) in requested {
        let free = capacity.get(class).ok_or(FilterReason::NoAnnotation)?;
        let free: u64 = free.parse().map_err(|_| FilterReason::BadAnnotation(free.clone()))?;
        if free < *requested {
            return Err(FilterReason::Full);
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
    fn a_node_fits_when_every_class_has_room(
        #[case] capacity: &[(&str, &str)],
        #[case] requested: &[(&str, u64)],
        #[case] expected: Result<(), FilterReason>,
    ) {
        let capacity = capacity.iter().map(|&(class, free)| (class.to_owned(), free.to_owned())).collect();
        let requested = requested.iter().map(|&(class, bytes)| (class.to_owned(), bytes)).collect();
        assert_eq!(check_node(&capacity, &requested), expected);
    }

    #[test]
    fn the_reasons_are_those_that_users_look_for() {
        assert_eq!(FilterReason::NoAnnotation.to_string(), "no capacity annotation");
        assert_eq!(FilterReason::BadAnnotation("foo".to_owned()).to_string(), "bad capacity annotation: foo");
        assert_eq!(FilterReason::Full.to_string(), "out of VG free space");
    }
}
