//! Decides when a problem has lasted so long that the rollout cannot succeed.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::problem::{Chance, Problem};

/// Time that a problem may last which rarely passes.
const GRACE: Duration = Duration::from_mins(1);
/// Restarts of a container since it was first seen to crash, after which it does not get ready. kubelet waits for 10,
/// 20 and 40 seconds before them. A container of the version before is replaced earlier.
const RESTARTS: i32 = 2;

/// The problems that a rollout has at present.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Time at which each remaining problem was first seen, by its subject.
    since: BTreeMap<String, Instant>,
    /// Restarts of each container when it was first seen to crash, by its subject.
    restarts: BTreeMap<String, i32>,
}

impl Patience {
    /// Records the present problems, and returns those that waiting does not fix.
    pub(super) fn find_final<'a>(&mut self, problems: &'a [Problem], now: Instant) -> Vec<&'a Problem> {
        let lasts = |problem: &Problem| problem.chance() == Chance::Small;
        self.since.retain(|subject, _| problems.iter().any(|one| lasts(one) && one.subject == *subject));
        for problem in problems.iter().filter(|problem| lasts(problem)) {
            self.since.entry(problem.subject.clone()).or_insert(now);
        }
        let mut is_final = |problem: &&Problem| match problem.chance() {
            Chance::Open => false,
            Chance::Gone => true,
            Chance::Small => self.since.get(&problem.subject).is_some_and(|since| now.duration_since(*since) >= GRACE),
            Chance::Crash => problem.container.as_ref().is_some_and(|container| {
                let before = self.restarts.entry(problem.subject.clone()).or_insert(container.restarts);
                container.restarts - *before >= RESTARTS
            }),
        };
        problems.iter().filter(|problem| is_final(problem)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::Container;
    use super::*;

    fn problem(reason: &str, restarts: i32) -> Problem {
        Problem {
            subject: "pod p, container c".to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
            container: Some(Container { pod: "p".to_owned(), name: "c".to_owned(), restarts }),
        }
    }

    #[test]
    fn problem_that_lasts_is_final() {
        let (mut patience, began) = (Patience::default(), Instant::now());
        let mut is_final = |reason: &str, seconds: u64| {
            let problems = [problem(reason, 0)];
            !patience.find_final(&problems, began + Duration::from_secs(seconds)).is_empty()
        };
        assert!(!is_final("ErrImagePull", 0));
        assert!(!is_final("ImagePullBackOff", 59));
        assert!(is_final("ErrImagePull", 60), "it is the same problem");
        assert!(!is_final("NotSaidWhy", 61));
        assert!(!is_final("ErrImagePull", 119), "it was away");
        assert!(is_final("InvalidImageName", 120));
    }

    #[test]
    fn container_that_crashes_again_and_again_is_final() {
        let mut patience = Patience::default();
        let mut is_final =
            |restarts: i32| !patience.find_final(&[problem("CrashLoopBackOff", restarts)], Instant::now()).is_empty();
        // Of the version before the upgrade
        assert!(!is_final(40));
        assert!(!is_final(41));
        assert!(is_final(42));
    }
}
