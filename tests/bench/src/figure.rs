//! A measured figure and its goal, which is reported and never asserted by a test: machines are noisy.

use std::fmt;

/// Unit of the throughput of a volume divided by that of the bare device: more is better, and the goal is a lower
/// bound.
pub(crate) const OF_RAW: &str = "of raw";
/// Unit of the throughput of a volume divided by that of an LV that was made by hand; a lower bound, too.
pub(crate) const OF_LV: &str = "of LV";
/// Unit of the time of another program divided by that of the product; a lower bound, too.
pub(crate) const TIMES_AS_FAST: &str = "times as fast";
/// Units of figures whose goal is a lower bound.
const LOWER_BOUNDS: [&str; 3] = [OF_RAW, OF_LV, TIMES_AS_FAST];

/// A measured figure and its goal, which is an upper bound except for [`OF_RAW`], [`OF_LV`] and [`TIMES_AS_FAST`].
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Dotted name, `csi.create.p50_ms`.
    pub(crate) name: &'static str,
    /// Measured value, in `unit`.
    pub(crate) value: f64,
    /// `ms`, `ratio`, `MiB`, ...
    pub(crate) unit: &'static str,
    /// Largest value that meets the goal, or the smallest where it is a lower bound; infinite for a figure without a
    /// goal, which is for comparison.
    pub(crate) goal: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, unit, goal } = self;
        if goal.is_infinite() {
            return write!(f, "bench {name} {value:.2} {unit} goal - ok");
        }
        let is_met = if LOWER_BOUNDS.contains(unit) { value >= goal } else { value <= goal };
        let result = if is_met { "ok" } else { "short" };
        write!(f, "bench {name} {value:.2} {unit} goal {goal} {result}")
    }
}

/// Selects figures by the prefix of their names, which is a family of them.
pub(crate) type Selector<'a> = dyn Fn(&str) -> bool + Sync + 'a;

/// Returns the median; of an even number of values, the upper one of the middle two.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_whether_its_goal_is_met() {
        let figure = Figure { name: "a.b", value: 2.345, unit: "ms", goal: 3.0 };
        assert_eq!(figure.to_string(), "bench a.b 2.35 ms goal 3 ok");
        assert_eq!(Figure { goal: 2.0, ..figure }.to_string(), "bench a.b 2.35 ms goal 2 short");
        for unit in LOWER_BOUNDS {
            let share = |value, goal| Figure { value, unit, goal, ..figure }.to_string();
            assert_eq!(share(0.99, 0.98), format!("bench a.b 0.99 {unit} goal 0.98 ok"));
            assert_eq!(share(0.97, 0.98), format!("bench a.b 0.97 {unit} goal 0.98 short"));
            assert_eq!(share(0.97, f64::INFINITY), format!("bench a.b 0.97 {unit} goal - ok"));
        }
        assert_eq!(Figure { goal: f64::INFINITY, ..figure }.to_string(), "bench a.b 2.35 ms goal - ok");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
