//! Volumes that a provisioner abandons: csi-provisioner keeps a claim that is deleted while its volume is being created
//! in memory only, and when it exits then, nothing knows that the volume is not wanted (docs/limits.md).
//! topolvm-controller does the same in its first call for a volume. A LogicalVolume does not show that no
//! PersistentVolume will follow, so an administrator deletes it, and here the test. No other leak is excused.

use std::fs;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use testbed::cluster::Cluster;

use super::disagreement::Disagreement;
use super::history::{History, Span};

/// Time after which a LogicalVolume without an owner does not get one any more.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Longest time that a provisioner works on a volume after its claim is deleted: it waits a minute for an answer and
/// five seconds before it retries.
const AT_WORK: Duration = Duration::from_secs(65);

/// Names of abandoned volumes, and the time since which they are the only disagreements.
#[derive(Debug)]
pub(super) struct Abandoned {
    /// Names of the programs that create volumes.
    provisioners: &'static [&'static str],
    all: Vec<String>,
    since: Instant,
}

impl Abandoned {
    /// Returns none of these provisioners.
    pub(super) fn by(provisioners: &'static [&'static str]) -> Self {
        Self { provisioners, all: Vec::new(), since: Instant::now() }
    }

    /// Returns true if all disagreements have been abandoned volumes, and the same ones, for [`FORGOTTEN`].
    pub(super) fn explains_all(
        &mut self,
        disagreements: &[Disagreement],
        history: &History,
        cluster: &Cluster,
    ) -> Result<bool> {
        let mut orphans = disagreements
            .iter()
            .map(|disagreement| disagreement.orphan.clone())
            .collect::<Option<Vec<_>>>()
            .unwrap_or_default();
        if !orphans.is_empty() {
            let logs = self.provisioners.iter().map(|name| read_log(cluster, name)).collect::<Result<String>>()?;
            if !orphans.iter().all(|orphan| is_abandoned(orphan, self.provisioners, history, &logs)) {
                orphans.clear();
            }
        }
        if orphans.is_empty() || orphans != self.all {
            *self = Self { all: orphans, ..Self::by(self.provisioners) };
        }
        Ok(!self.all.is_empty() && self.since.elapsed() >= FORGOTTEN)
    }

    /// Deletes the abandoned volumes, as an administrator would, and returns their number.
    pub(super) fn delete(&self, cluster: &Cluster) -> Result<usize> {
        for name in &self.all {
            cluster.kubectl_ok(["delete", "logicalvolumes.topolvm.io", name])?;
        }
        Ok(self.all.len())
    }
}

/// Returns the log of a program; that of one that never ran is empty.
fn read_log(cluster: &Cluster, program: &str) -> Result<String> {
    let log = cluster.log(program);
    match fs::read(&log) {
        Ok(log) => Ok(String::from_utf8_lossy(&log).into_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error).with_context(|| format!("read {}", log.display())),
    }
}

/// Returns true if a provisioner exited while it worked on this volume, and none finished that later.
fn is_abandoned(name: &str, provisioners: &[&str], history: &History, logs: &str) -> bool {
    let Some(uid) = name.strip_prefix("pvc-") else { return false };
    let Some(claim) = history.short_lived_claim(uid) else { return false };
    let outages = history.outages();
    let mut exits = provisioners.iter().flat_map(|name| history.exits(name));
    exits.any(|end| exit_can_be_cause(end, claim, &outages)) && !is_finished(uid, logs)
}

/// Returns true if a provisioner may have had the claim in its memory when it exited: after the claim was requested,
/// and at most [`AT_WORK`] after it was deleted. While the API server is unavailable a provisioner neither creates
/// volumes nor learns of changes.
fn exit_can_be_cause(end: Duration, claim: Span, outages: &[Span]) -> bool {
    let last = outages.iter().fold(claim.until + AT_WORK, |last, outage| {
        if outage.from <= last { last.max(outage.until + AT_WORK) } else { last }
    });
    (claim.from..=last).contains(&end)
}

/// Returns true if a provisioner logged that it created the PersistentVolume, with which the volume is deleted, or that
/// there is no volume. A volume that exists then was left behind by the product.
fn is_finished(uid: &str, logs: &str) -> bool {
    let made = format!("successfully created PV pvc-{uid} ");
    let outcomes = ["Final error received", "provisioned a volume"];
    logs.lines().any(|line| {
        line.contains(&made) || (line.contains(uid) && outcomes.iter().any(|outcome| line.contains(outcome)))
    })
}

#[cfg(test)]
mod tests {
    use testbed::sidecars::Sidecar;

    use super::super::history::{Cause, EVENTS, Fact};
    use super::*;

    const PROVISIONER: &str = Sidecar::Provisioner.name();
    const SECOND: Duration = Duration::from_secs(1);

    fn span(from: u32, until: u32) -> Span {
        Span { from: SECOND * from, until: SECOND * until }
    }

    #[test]
    fn an_end_before_or_long_after_the_claim_is_not_the_cause() {
        let is_cause = |end: u32| exit_can_be_cause(SECOND * end, span(100, 102), &[]);
        assert!(!is_cause(99) && is_cause(100) && is_cause(101));
        assert!(is_cause(167) && !is_cause(168), "it does not work on the volume indefinitely");
    }

    #[test]
    fn only_an_outage_while_the_volume_is_made_holds_it_up() {
        let is_cause = |end: u32, outages: &[Span]| exit_can_be_cause(SECOND * end, span(100, 102), outages);
        assert!(is_cause(280, &[span(150, 220)]));
        assert!(!is_cause(286, &[span(150, 220)]));
        assert!(!is_cause(280, &[span(20, 30), span(170, 220)]));
        assert!(is_cause(400, &[span(150, 220), span(280, 340)]), "one after the other");
    }

    #[test]
    fn volume_of_short_lived_claim_is_abandoned_if_provisioner_died() {
        let directory = tempfile::tempdir().unwrap();
        let history = History::new(&directory.path().join("history")).unwrap();
        let hasty = |uid: &str| {
            history.record("s1", "creates c and deletes it at once".to_owned());
            history.record("s1", Fact::ShortLivedClaim { claim: "c".to_owned(), uid: uid.to_owned() });
            history.record("s1", Fact::ShortLivedClaimGone { uid: uid.to_owned() });
        };
        hasty("before");
        let is_abandoned = |name: &str, log: &str| is_abandoned(name, &[PROVISIONER], &history, log);
        assert!(!is_abandoned("pvc-before", ""), "csi-provisioner has not ended");
        history.record(EVENTS, Fact::Ended(Sidecar::Resizer.name(), Cause::Exit));
        assert!(!is_abandoned("pvc-before", ""), "another one has");
        history.record(EVENTS, Fact::Ended(PROVISIONER, Cause::Exit));
        hasty("after");
        assert!(is_abandoned("pvc-before", ""));
        assert!(!is_abandoned("pvc-after", ""), "it ended before the claim was made");
        assert!(!is_abandoned("pvc-unknown", "") && !is_abandoned("snapshot-before", ""));
        let made = "I1122 controller.go:1021] successfully created PV pvc-before for PVC c and csi volume name x";
        assert!(!is_abandoned("pvc-before", made), "the product was to delete it");
        let refused = "I1122 controller.go:1100] \"Final error received, removing PVC from claims in progress\" \
                       claimUID=\"before\"";
        assert!(!is_abandoned("pvc-before", refused), "the product said that there is none");
        assert!(is_abandoned("pvc-before", &made.replace("before", "other")));
        let made = r#"{"message":"provisioned a volume","claim":"default/c","volume":"pvc-before"}"#;
        assert!(!is_abandoned("pvc-before", made), "the embedded provisioner has made the PersistentVolume");
    }
}
