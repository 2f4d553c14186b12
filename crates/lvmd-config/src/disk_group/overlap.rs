//! Compares the selectors of two groups for disks that both select, as far as this is possible without reading disks.

use super::selector::{Pattern, Selector};

/// Returns whether both selectors match some disk and differ in nothing that excludes the other. Where they use other
/// names for disks, or different patterns, only the disks of a machine decide.
pub(super) fn is_certain(one: &Selector, other: &Selector) -> bool {
    let names = |selector: &Selector| {
        [&selector.paths, &selector.ids, &selector.models, &selector.serials].map(|patterns| !patterns.is_empty())
    };
    let is_named = |selector: &Selector| names(selector).contains(&true);
    let named_alike = !is_named(one) || !is_named(other) || (names(one) == names(other) && share_names(one, other));
    named_alike && !differ(one, other)
}

/// Returns whether each list of patterns has one in common with its counterpart.
fn share_names(one: &Selector, other: &Selector) -> bool {
    let pairs = [
        (&one.paths, &other.paths),
        (&one.ids, &other.ids),
        (&one.models, &other.models),
        (&one.serials, &other.serials),
    ];
    pairs.into_iter().all(|(one, other)| one.is_empty() || share_pattern(one, other))
}

/// Returns whether a pattern is in both lists, or is a name that a pattern of the other list matches.
fn share_pattern(one: &[Pattern], other: &[Pattern]) -> bool {
    let covers = |pattern: &Pattern, name: &Pattern| {
        pattern == name || (is_literal(name.as_str()) && pattern.matches(name.as_str()))
    };
    one.iter().any(|one| other.iter().any(|other| covers(one, other) || covers(other, one)))
}

fn is_literal(pattern: &str) -> bool {
    !pattern.contains(|character| r"\.+*?()|[]{}^$".contains(character))
}

/// Returns whether no disk can have the properties that both ask for.
fn differ(one: &Selector, other: &Selector) -> bool {
    let transports = !one.transports.is_empty()
        && !other.transports.is_empty()
        && !one.transports.iter().any(|transport| other.transports.contains(transport));
    let rotational = one.rotational.zip(other.rotational).is_some_and(|(one, other)| one != other);
    let below = |small: &Selector, large: &Selector| {
        small.max_size.zip(large.min_size).is_some_and(|(most, least)| most < least)
    };
    transports || rotational || below(one, other) || below(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
    }

    fn of_paths(texts: &[&str]) -> Selector {
        Selector { paths: patterns(texts), ..Selector::default() }
    }

    fn turning(rotational: bool) -> Selector {
        Selector { rotational: Some(rotational), ..Selector::default() }
    }

    /// Checks both ways round.
    fn overlap(one: &Selector, other: &Selector) -> bool {
        let result = is_certain(one, other);
        assert_eq!(result, is_certain(other, one));
        result
    }

    #[test]
    fn the_same_pattern_and_a_name_that_a_pattern_matches_overlap() {
        assert!(overlap(&of_paths(&["/dev/sd.*"]), &of_paths(&["/dev/vd.*", "/dev/sd.*"])));
        assert!(overlap(&of_paths(&["/dev/sd.*"]), &of_paths(&["/dev/sdb"])));
        assert!(!overlap(&of_paths(&["/dev/sda"]), &of_paths(&["/dev/sdb"])));
    }

    #[test]
    fn overlap_of_different_patterns_or_name_kinds_is_not_assumed() {
        assert!(!overlap(&of_paths(&["/dev/sd[a-c]"]), &of_paths(&["/dev/sd[c-e]"])));
        let by_id = Selector { ids: patterns(&["wwn-.*"]), ..Selector::default() };
        assert!(!overlap(&of_paths(&["/dev/sd.*"]), &by_id));
        let both = Selector { ids: patterns(&["wwn-.*"]), ..of_paths(&["/dev/sd.*"]) };
        assert!(!overlap(&both, &of_paths(&["/dev/sd.*"])));
    }

    #[test]
    fn overlap_without_name_patterns_depends_on_disk_properties() {
        assert!(overlap(&turning(true), &of_paths(&["/dev/sd.*"])));
        assert!(overlap(&turning(true), &turning(true)));
        assert!(!overlap(&turning(true), &turning(false)));
        assert!(!overlap(&turning(true), &Selector { rotational: Some(false), ..of_paths(&["/dev/sd.*"]) }));
    }

    #[test]
    fn sizes_and_transports_distinguish_groups() {
        let sized = |min_size, max_size| Selector { min_size, max_size, ..of_paths(&["/dev/sd.*"]) };
        assert!(overlap(&sized(None, Some(10)), &sized(Some(10), None)));
        assert!(!overlap(&sized(None, Some(10)), &sized(Some(11), None)));
        let attached =
            |transports: &[&'static str]| Selector { transports: transports.to_vec(), ..Selector::default() };
        assert!(overlap(&attached(&["sata", "nvme"]), &attached(&["nvme"])));
        assert!(!overlap(&attached(&["sata"]), &attached(&["nvme"])));
    }
}
