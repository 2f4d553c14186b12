//! Commands of the documentation, which tests run unchanged: the code blocks marked `sh`. `cargo xtask lint` checks
//! that each section with such a block has a test.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::page::code_blocks;

use crate::plugin::{self, Answer};

/// The commands of a section of a page.
#[derive(Debug, Clone)]
pub struct Commands {
    /// Page and section, for errors.
    place: String,
    script: String,
}

impl Commands {
    /// Reads the blocks marked `sh` of a section, up to the next heading, in their order. The page is a path below
    /// `docs`.
    pub fn of(page: &str, section: &str) -> Result<Self> {
        let script = read_blocks(page, section, "sh")?.concat();
        Ok(Self { place: format!("{page}, section {section:?}"), script })
    }

    /// Replaces a value of the page, an example for what readers have, by that of the test cluster.
    pub fn with(self, written: &str, here: &str) -> Result<Self> {
        ensure!(self.script.contains(written), "{} does not say {written:?}: {}", self.place, self.script);
        Ok(Self { script: self.script.replace(written, here), ..self })
    }

    /// Sets a shell variable before the commands, which readers of the page must set.
    #[must_use]
    pub fn set(self, name: &str, value: &str) -> Self {
        Self { script: format!("{name}='{value}'\n{}", self.script), ..self }
    }

    /// Returns the commands, for a caller that runs them in a guest that is not a node.
    pub fn script(&self) -> &str {
        &self.script
    }

    /// Returns a shell that runs the commands as administrator of a cluster, from the top of the repository.
    pub fn command(&self, cluster: &Cluster) -> Result<Command> {
        let mut command = plugin::shell(cluster, &self.script)?;
        command.current_dir(repository());
        Ok(command)
    }

    /// Runs the commands as administrator of a cluster, from the top of the repository, and returns what they print.
    pub fn run(&self, cluster: &Cluster) -> Result<String> {
        self.run_in(cluster, repository())
    }

    /// Runs the commands as administrator of a cluster in a directory, where they leave files.
    pub fn run_in(&self, cluster: &Cluster, directory: &Path) -> Result<String> {
        self.answer(self.command(cluster)?.current_dir(directory)).map(|answer| answer.text)
    }

    /// Returns a shell that runs the commands on this machine.
    #[expect(clippy::disallowed_methods, reason = "a test runs what readers type")]
    pub fn shell(&self) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-ec", &self.script]);
        shell
    }

    /// Runs a shell with the commands, which must succeed, and returns what they print.
    pub fn answer(&self, shell: &mut Command) -> Result<Answer> {
        let output = shell.output().context("run sh")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let is_success = output.status.success();
        let answer = Answer { is_success, text: text(&output.stdout), errors: text(&output.stderr) };
        ensure!(is_success, "{}: {}\n{}\n{}", self.place, self.script, answer.text, answer.errors);
        Ok(answer)
    }

    /// Runs the commands on a node, as root in its directory, and returns what they print.
    pub fn run_on(&self, node: &Node) -> Result<String> {
        node.script(&format!("cd /root\n{}", self.script)).with_context(|| self.place.clone())
    }
}

/// Returns the objects in the blocks marked `yaml` of a section, as one document for `kubectl apply`.
pub fn manifests(page: &str, section: &str) -> Result<String> {
    let blocks = read_blocks(page, section, "yaml")?;
    let objects: Vec<_> = blocks.into_iter().filter(|block| block.contains("\nkind: ")).collect();
    ensure!(!objects.is_empty(), "section {section:?} of {page} has no object");
    Ok(objects.join("---\n"))
}

/// Returns the queries in the blocks marked `promql` of a section, without comments. Each begins a line, and continues
/// in indented lines.
pub fn queries(page: &str, section: &str) -> Result<Vec<String>> {
    let mut queries: Vec<String> = Vec::new();
    let blocks = read_blocks(page, section, "promql")?;
    for line in blocks.iter().flat_map(|block| block.lines()).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match queries.last_mut() {
            Some(query) if line.starts_with(' ') => query.extend([" ", line.trim()]),
            _ => queries.push(line.to_owned()),
        }
    }
    Ok(queries)
}

fn read_blocks(page: &str, section: &str, language: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(repository().join("docs").join(page)).with_context(|| format!("read {page}"))?;
    let blocks = code_blocks(&text).into_iter();
    let blocks = blocks.filter(|block| block.section == section && block.language == language);
    let texts: Vec<_> = blocks.map(|block| block.text).collect();
    ensure!(!texts.is_empty(), "section {section:?} of {page} has no block marked {language}");
    Ok(texts)
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
