//! Measurements and their goals. A goal is reported, never asserted by a test: machines are noisy.

pub mod agent;
pub mod capacity;
pub mod cluster;
pub mod create;
pub mod images;
pub mod install;
pub mod lvmd;
mod memory;
mod metrics;
pub mod scheduler;
pub mod volume_metrics;
pub mod web_page;

use std::fmt;

/// A measured figure beside its goal, which is an upper bound.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Dotted name, `csi.create.p50_ms`.
    pub name: &'static str,
    /// Measured value, in `unit`.
    pub value: f64,
    /// `ms`, `ratio`, `MiB`, ...
    pub unit: &'static str,
    /// Largest value that meets the goal; infinite for a figure without a goal, which stands beside another figure.
    pub goal: f64,
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, unit, goal } = self;
        let verdict = if value <= goal { "ok" } else { "short" };
        if goal.is_infinite() {
            return write!(f, "bench {name} {value:.2} {unit} goal - {verdict}");
        }
        write!(f, "bench {name} {value:.2} {unit} goal {goal} {verdict}")
    }
}

/// Selects figures by the prefix of their names, which is a family of them.
pub type Selector<'a> = dyn Fn(&str) -> bool + Sync + 'a;

/// Returns the median; of an even number of values, the upper one of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
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
        assert_eq!(Figure { goal: f64::INFINITY, ..figure }.to_string(), "bench a.b 2.35 ms goal - ok");
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![]), None);
    }
}
