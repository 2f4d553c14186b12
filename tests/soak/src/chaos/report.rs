//! Report of a run, and explanations of its disagreements from histories and logs.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use testbed::cluster::Cluster;
use testbed::node::Node;

use super::disagreement::{Counts, Disagreement};
use super::disturbance::DisturbanceKind;
use super::history::History;

/// Figures of a successful run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Number of sequences of steps.
    pub(crate) sequences: usize,
    /// Number of steps of all sequences.
    pub(crate) steps: usize,
    /// Duration of the sequences and events.
    pub(crate) working: Duration,
    /// Duration from the last step until everything agreed.
    pub(crate) settling: Duration,
    /// Duration from the deletion of all claims and snapshots until everything agreed.
    pub(crate) clearing: Duration,
    /// Number of claims and of snapshots that the plan leaves behind.
    pub(crate) expected: (usize, usize),
    /// Number of LogicalVolumes when everything agreed.
    pub(crate) kept: usize,
    /// Disagreements at that time.
    pub(crate) settled: Counts,
    /// Disagreements after everything was deleted.
    pub(crate) cleared: Counts,
    /// Number of LogicalVolumes that csi-provisioner abandoned, and that the test deleted.
    pub(crate) abandoned: usize,
    /// Number of kills of programs.
    pub(crate) kills: usize,
    /// Number of outages of the API server, and their total duration.
    pub(crate) outages: (usize, Duration),
    /// Number of disturbances of nodes, by kind.
    pub(crate) disturbances: BTreeMap<DisturbanceKind, usize>,
    /// Number of exits of sidecars, which exit when they lose their driver.
    pub(crate) sidecar_exits: usize,
    /// Seconds of each step, sorted.
    pub(crate) seconds: Vec<f64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequences, steps, kills, kept, abandoned, sidecar_exits, settled, cleared, .. } = self;
        let (claims, snapshots) = self.expected;
        let (outages, away) = self.outages;
        let part = |share: usize| self.seconds.get(self.seconds.len().saturating_sub(1) * share / 100).unwrap_or(&0.0);
        writeln!(f, "{sequences} sequences with {steps} steps in {:.0} s", self.working.as_secs_f64())?;
        writeln!(f, "a step took {:.2} s (median), {:.2} s (95 %), {:.2} s (longest)", part(50), part(95), part(100))?;
        writeln!(f, "{kills} kills, {outages} outages of {:.0} s together", away.as_secs_f64())?;
        let disturbances: Vec<_> =
            self.disturbances.iter().map(|(kind, times)| format!("{} {times}x", kind.name())).collect();
        writeln!(f, "nodes were disturbed: {}", disturbances.join(", "))?;
        writeln!(f, "sidecars ended {sidecar_exits} times, the product never exited unexpectedly")?;
        let (settling, clearing) = (self.settling.as_secs_f64(), self.clearing.as_secs_f64());
        writeln!(
            f,
            "{claims} claims and {snapshots} snapshots were to stay: \
             {kept} LogicalVolumes after {settling:.1} s, {settled}"
        )?;
        writeln!(f, "then none were to stay: {clearing:.1} s later {cleared}")?;
        write!(
            f,
            "{abandoned} LogicalVolumes of claims deleted at once were abandoned by the provisioner when it ended"
        )
    }
}

/// Returns the disagreements with the history and the log lines of the volumes concerned.
pub(super) fn explain(all: &[Disagreement], history: &History, cluster: &Cluster, nodes: &[Node]) -> String {
    let mut parts: Vec<String> = all.iter().map(|disagreement| format!("- {disagreement}")).collect();
    for disagreement in all.iter().take(3) {
        let ids = &disagreement.about;
        // A volume of Kubernetes is named by the UID of its claim
        let mut words: Vec<String> = ids.iter().map(|id| id.trim_start_matches("pvc-").to_owned()).collect();
        words.extend(ids.iter().map(|id| id.trim_start_matches("snapcontent-").to_owned()));
        let who = history.authors_mentioning(&words);
        parts.push(format!("\n{disagreement}\nhistory:\n{}", history.excerpt(&who)));
        parts.extend(log_lines(cluster, nodes, ids));
    }
    parts.join("\n")
}

/// Returns the lines of all logs that mention one of these ids.
fn log_lines(cluster: &Cluster, nodes: &[Node], ids: &[String]) -> Vec<String> {
    let mut directories = vec![cluster.directory().join("log")];
    directories.extend(nodes.iter().map(|node| node.directory().to_owned()));
    let mut files: Vec<_> =
        directories.iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten()).collect();
    files.sort_by_key(|file| file.as_ref().map(fs::DirEntry::path).ok());
    let logs = files.into_iter().filter_map(|file| Some(file.ok()?.path()));
    let logs = logs.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    logs.flat_map(|path| matching_lines(&path, ids)).collect()
}

fn matching_lines(path: &Path, ids: &[String]) -> Vec<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Those have every request, and the history
    if ids.is_empty() || ["kubelet.log", "containerd.log", "apiserver.log", "chaos.log"].contains(&name.as_str()) {
        return Vec::new();
    }
    let log = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let lines: Vec<_> = log.lines().filter(|line| ids.iter().any(|id| line.contains(id.as_str()))).collect();
    let last = lines.get(lines.len().saturating_sub(25)..).unwrap_or_default();
    last.iter().map(|line| format!("{name}: {}", line.chars().take(400).collect::<String>())).collect()
}
