//! The outcome of a burst.

use std::fmt;
use std::time::Duration;

use super::Settings;

/// The outcome of a burst.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Settings of the burst.
    pub settings: Settings,
    /// Number of pods that were scheduled.
    pub scheduled: usize,
    /// Names of the pods that no node has room for.
    pub without_room: Vec<String>,
    /// Names of the pods that wait although a node has room for them.
    pub overlooked: Vec<String>,
    /// Names of the pods of which some volumes are on a node that has no room for the others.
    pub stranded: Vec<String>,
    /// Bytes by which the volumes of nodes exceed what they have.
    pub excess: u64,
    /// Number of CreateVolume calls that were answered with ResourceExhausted.
    pub refused: u64,
    /// Time from the first request until the last pod was scheduled.
    pub last_scheduled: Duration,
}

impl Outcome {
    /// Returns true if no node was given more than it has, and no pod waits without reason.
    pub fn is_right(&self) -> bool {
        self.excess == 0 && self.overlooked.is_empty() && self.stranded.is_empty()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, scheduled, without_room, overlooked, stranded, excess, refused, last_scheduled } = self;
        write!(
            f,
            "{} SEED={}: {scheduled} of {} pods scheduled, the last after {:.1} s; {} without room, {} overlooked, \
             {} stranded; {refused} volumes refused, {excess} bytes too many",
            settings.mode,
            settings.seed,
            settings.pods,
            last_scheduled.as_secs_f64(),
            without_room.len(),
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
