//! Which nodes have room.

use std::collections::BTreeMap;

use crate::extender::Annotations;

/// Why a pod's volumes cannot go to a node. The texts are shown in events and looked for by users' scripts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    /// The node does not have the device class.
    #[error("no capacity annotation")]
    NoAnnotation,
    #[error("bad capacity annotation: {0}")]
    BadAnnotation(String),
    #[error("out of VG free space")]
    Full,
}

/// Whether a node has room for what is requested in every device class, in bytes.
pub(crate) fn check(capacity: &Annotations, requested: &BTreeMap<String, u64>) -> Result<(), Misfit> {
    for (class, requested) in requested {
        let free = capacity.get(class).ok_or(Misfit::NoAnnotation)?;
        let free: u64 = free.parse().map_err(|_| Misfit::BadAnnotation(free.clone()))?;
        if free < *requested {
            return Err(Misfit::Full);
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
    #[case::too_little(&[("a", "1073741823")], &[("a", GIB)], Err(Misfit::Full))]
    #[case::zero_requested_of_nothing(&[("a", "0")], &[("a", 0)], Ok(()))]
    #[case::zero_requested_of_a_class_that_the_node_lacks(&[], &[("a", 0)], Err(Misfit::NoAnnotation))]
    #[case::other_class_only(&[("b", "2147483648")], &[("a", GIB)], Err(Misfit::NoAnnotation))]
    #[case::no_number(&[("a", "foo")], &[("a", GIB)], Err(Misfit::BadAnnotation("foo".to_owned())))]
    #[case::negative(&[("a", "-1")], &[("a", GIB)], Err(Misfit::BadAnnotation("-1".to_owned())))]
    #[case::two_classes(&[("a", "2147483648"), ("b", "2147483648")], &[("a", GIB), ("b", GIB)], Ok(()))]
    #[case::one_of_two_full(&[("a", "2147483648"), ("b", "1")], &[("a", GIB), ("b", GIB)], Err(Misfit::Full))]
    #[case::one_of_two_missing(&[("a", "2147483648")], &[("a", GIB), ("b", GIB)], Err(Misfit::NoAnnotation))]
    fn a_node_fits_when_every_class_has_room(
        #[case] capacity: &[(&str, &str)],
        #[case] requested: &[(&str, u64)],
        #[case] expected: Result<(), Misfit>,
    ) {
        let capacity = capacity.iter().map(|&(class, free)| (class.to_owned(), free.to_owned())).collect();
        let requested = requested.iter().map(|&(class, bytes)| (class.to_owned(), bytes)).collect();
        assert_eq!(check(&capacity, &requested), expected);
    }

    #[test]
    fn the_reasons_are_those_that_users_look_for() {
        assert_eq!(Misfit::NoAnnotation.to_string(), "no capacity annotation");
        assert_eq!(Misfit::BadAnnotation("foo".to_owned()).to_string(), "bad capacity annotation: foo");
        assert_eq!(Misfit::Full.to_string(), "out of VG free space");
    }
}
