//! Disagreements in a state, and their counts by kind.

use std::fmt;

/// Kind of a disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An object or LV is expected and missing.
    Lost,
    /// An object or LV exists and is not expected.
    Leaked,
    /// An object or LV exists more than once.
    Double,
    /// An object or LV has another state than expected, or an operation on it has not ended.
    Different,
}

/// A disagreement between Kubernetes, lvmd, LVM and the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Disagreement {
    pub(super) kind: Kind,
    /// Names and ids to search for in logs and histories.
    pub(super) about: Vec<String>,
    pub(super) what: String,
    /// Name of the LogicalVolume without an owner, if that is the disagreement.
    pub(super) orphan: Option<String>,
}

impl Disagreement {
    /// Returns a disagreement without an orphan. Empty names are left out.
    pub(super) fn new(kind: Kind, about: &[&str], what: impl Into<String>) -> Self {
        let about = about.iter().filter(|name| !name.is_empty()).map(|name| (*name).to_owned()).collect();
        Self { kind, about, what: what.into(), orphan: None }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Lost => "lost: ",
            Kind::Leaked => "leaked: ",
            Kind::Double => "double: ",
            Kind::Different => "",
        })?;
        f.write_str(&self.what)
    }
}

/// Number of disagreements of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Number of missing objects and LVs.
    pub(crate) lost: usize,
    /// Number of objects and LVs that are not expected.
    pub(crate) leaked: usize,
    /// Number of objects and LVs that exist more than once.
    pub(crate) double: usize,
    /// Number of objects and LVs with another state than expected.
    pub(crate) different: usize,
}

impl Counts {
    pub(super) fn of(all: &[Disagreement]) -> Self {
        let count = |kind| all.iter().filter(|disagreement| disagreement.kind == kind).count();
        Self {
            lost: count(Kind::Lost),
            leaked: count(Kind::Leaked),
            double: count(Kind::Double),
            different: count(Kind::Different),
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, leaked, double, different } = self;
        write!(f, "{lost} lost, {leaked} leaked, {double} double, {different} different")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disagreements_are_counted_by_kind() {
        let all = [Kind::Lost, Kind::Leaked, Kind::Leaked, Kind::Double, Kind::Different]
            .map(|kind| Disagreement::new(kind, &["", "a"], "x"));
        assert_eq!(Counts::of(&all).to_string(), "1 lost, 2 leaked, 1 double, 1 different");
        assert_eq!(Counts::of(&[]), Counts::default());
        assert_eq!((all[0].to_string(), all[0].about.as_slice()), ("lost: x".to_owned(), ["a".to_owned()].as_slice()));
    }
}
