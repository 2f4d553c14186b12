//! Runs csi-sanity in a node guest, and reads its report.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use testbed::exec::Request;
use testbed::node::Node;

/// Sizes of the volumes that the suite creates: one and two GiB, whole extents, because sizes are compared exactly.
const VOLUME_BYTES: u64 = 1 << 30;

/// Time after which a run counts as hanging. It takes two minutes on an idle machine.
const TIMEOUT: Duration = Duration::from_mins(20);

/// Reason for skipping a spec that csi-sanity itself marks as pending.
pub const PENDING: &str = "pending in the suite itself";

/// Specs of a run of csi-sanity by their outcome.
#[derive(Debug)]
pub struct Report {
    /// Names of the specs that ran and passed.
    pub passed: Vec<String>,
    /// Names of the specs that failed, with the reason.
    pub failed: Vec<(String, String)>,
    /// Names of the specs that did not run, with the reason.
    pub skipped: Vec<(String, String)>,
}

/// Access type of the volumes of a run.
#[derive(Clone, Copy, Debug)]
pub enum AccessType {
    /// Mounted filesystems.
    Mount,
    /// Raw block devices.
    Block,
}

/// Paths and parameters with which csi-sanity is run.
#[derive(Debug)]
pub struct Plugin<'a> {
    /// The csi-sanity program, as the guest sees it.
    pub program: &'a str,
    /// Path of the node service's socket.
    pub node_socket: &'a str,
    /// Path of the controller service's socket.
    pub controller_socket: &'a str,
    /// Parameters of the volumes, as of a StorageClass.
    pub parameters: &'a [(&'a str, &'a str)],
}

/// Runs all specs of csi-sanity in a node, without skipping any.
pub fn run(node: &Node, plugin: &Plugin<'_>, access: AccessType) -> Result<Report> {
    let work = "/run/csi-sanity";
    node.exec(&["mkdir", "-p", work])?.success()?;
    let parameters: Vec<String> = plugin.parameters.iter().map(|(key, value)| format!("{key}: {value}\n")).collect();
    node.script_with_input(&format!("cat >{work}/parameters.yaml"), parameters.concat().as_bytes())?;
    let access = match access {
        AccessType::Mount => "mount",
        AccessType::Block => "block",
    };
    let command = Request::new([
        plugin.program,
        &format!("--csi.endpoint=unix://{}", plugin.node_socket),
        &format!("--csi.controllerendpoint=unix://{}", plugin.controller_socket),
        &format!("--csi.mountdir={work}/mount"),
        &format!("--csi.stagingdir={work}/staging"),
        &format!("--csi.testvolumesize={VOLUME_BYTES}"),
        &format!("--csi.testvolumeexpandsize={}", 2 * VOLUME_BYTES),
        &format!("--csi.testvolumeaccesstype={access}"),
        &format!("--csi.testvolumeparameters={work}/parameters.yaml"),
        "--ginkgo.no-color",
        &format!("--ginkgo.json-report={work}/report.json"),
    ]);
    let output = node.exec_with(&command, b"", TIMEOUT)?;
    let report = node
        .exec(&["cat", &format!("{work}/report.json")])?
        .success()
        .with_context(|| format!("csi-sanity wrote no report:\n{}", String::from_utf8_lossy(&output.stdout)))?;
    node.exec(&["rm", "-rf", work])?.success()?;
    let report = Report::parse(&report)?;
    // The exit status also reports failures outside of specs
    ensure!(output.status == 0 || !report.failed.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(report)
}

impl Report {
    fn parse(json: &str) -> Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(json).context("csi-sanity's report is not what was expected")?;
        let mut report = Self { passed: Vec::new(), failed: Vec::new(), skipped: Vec::new() };
        for spec in suites.into_iter().flat_map(|suite| suite.specs).filter(|spec| spec.kind == "It") {
            let mut name = spec.containers.unwrap_or_default();
            name.push(spec.text);
            let name = name.join(" / ");
            let reason = spec.failure.map_or_else(String::new, |failure| failure.message);
            match spec.state.as_str() {
                "passed" => report.passed.push(name),
                "skipped" => report.skipped.push((name, reason.trim().to_owned())),
                "pending" => report.skipped.push((name, PENDING.to_owned())),
                _ => report.failed.push((name, reason)),
            }
        }
        Ok(report)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed, skipped) = (self.passed.len(), self.failed.len(), self.skipped.len());
        writeln!(f, "csi-sanity: {passed} passed, {failed} failed, {skipped} skipped")?;
        for (name, reason) in &self.failed {
            writeln!(f, "  failed: {name}\n    {}", reason.trim())?;
        }
        for (name, reason) in &self.skipped {
            writeln!(f, "  skipped: {name}: {}", reason.trim())?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Suite {
    #[serde(rename = "SpecReports")]
    specs: Vec<Spec>,
}

#[derive(Deserialize)]
struct Spec {
    #[serde(rename = "ContainerHierarchyTexts")]
    containers: Option<Vec<String>>,
    #[serde(rename = "LeafNodeType")]
    kind: String,
    #[serde(rename = "LeafNodeText")]
    text: String,
    #[serde(rename = "State")]
    state: String,
    #[serde(rename = "Failure")]
    failure: Option<Failure>,
}

#[derive(Deserialize)]
struct Failure {
    #[serde(rename = "Message")]
    message: String,
}
