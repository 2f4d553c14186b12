//! The outcome of a burst.

use std::fmt;
use std::time::Duration;

use super::{Mode, Settings};

/// The outcome of a burst.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Settings of the burst.
    pub settings: Settings,
    /// Number of pods that were scheduled.
    pub scheduled: usize,
    /// Names of the pods that no node has space for.
    pub without_space: Vec<String>,
    /// Names of the pods that wait although a node has space for them.
    pub overlooked: Vec<String>,
    /// Names of the pods with some volumes on a node that has no space for the others.
    pub stranded: Vec<String>,
    /// Bytes by which the volumes of nodes exceed the capacity. lvmd refuses volumes that do not fit, so this counts
    /// faults of lvmd, and `refused` those of the scheduler.
    pub excess: u64,
    /// Number of CreateVolume calls that were answered with ResourceExhausted: the selected node had no space.
    pub refused: u64,
    /// Time from the first request until the last pod was scheduled.
    pub last_scheduled: Duration,
}

impl Outcome {
    /// Returns true if no node was selected for more volumes than fit, where the mode has reservations, and no pod
    /// waits without reason.
    pub fn is_right(&self) -> bool {
        let most_refused = self.settings.mode.most_refused();
        let is_refused_too_often = most_refused.is_some_and(|most| self.refused > most);
        self.excess == 0 && !is_refused_too_often && self.overlooked.is_empty() && self.stranded.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, scheduled, without_space, overlooked, stranded, excess, refused, last_scheduled } = self;
        write!(
            f,
            "{} SEED={}: {scheduled} of {} pods scheduled, the last after {:.1} s; {} without space, {} overlooked, \
             {} stranded; {refused} volumes refused, {excess} bytes too many",
            settings.mode,
            settings.seed,
            settings.pods,
            last_scheduled.as_secs_f64(),
            without_space.len(),
            overlooked.len(),
            stranded.len(),
        )?;
        for (what, names) in [("overlooked", overlooked), ("stranded", stranded)] {
            if !names.is_empty() {
                write!(f, "\n  {what}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}

/// The sum of the outcomes of a mode: a row of the table in docs/testing.md.
#[derive(Clone, Copy, Debug)]
pub struct Sum<'a>(pub Mode, pub &'a [Outcome]);

impl Sum<'_> {
    /// Head of the table.
    pub const HEAD: &'static str = "\
        | mode | bursts | volumes refused | pods overlooked | pods stranded | slowest burst, s |\n\
        |---|---|---|---|---|---|";
}

impl fmt::Display for Sum<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mode, outcomes) = self;
        let count = |of: fn(&Outcome) -> usize| outcomes.iter().map(of).sum::<usize>();
        let refused: u64 = outcomes.iter().map(|outcome| outcome.refused).sum();
        let slowest = outcomes.iter().map(|outcome| outcome.last_scheduled).max().unwrap_or_default();
        let (overlooked, stranded) =
            (count(|outcome| outcome.overlooked.len()), count(|outcome| outcome.stranded.len()));
        let (bursts, slowest) = (outcomes.len(), slowest.as_secs_f64());
        write!(f, "| `{mode}` | {bursts} | {refused} | {overlooked} | {stranded} | {slowest:.1} |")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(mode: Mode, refused: u64) -> Outcome {
        Outcome {
            settings: Settings { mode, seed: 1, pods: 1, claims: 1 },
            scheduled: 1,
            without_space: Vec::new(),
            overlooked: Vec::new(),
            stranded: Vec::new(),
            excess: 0,
            refused,
            last_scheduled: Duration::ZERO,
        }
    }

    #[test]
    fn refused_volumes_are_a_failure_only_with_the_extender() {
        for (mode, is_right) in [(Mode::Extender, false), (Mode::Capacity, true), (Mode::EmbeddedCapacity, true)] {
            assert_eq!(outcome(mode, 1).is_right(), is_right, "{mode}");
            assert!(outcome(mode, 0).is_right(), "{mode}");
        }
    }
}
