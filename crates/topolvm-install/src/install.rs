//! `install` and `upgrade`: checks, plan, server-side apply, rollout and smoke test.
//!
//! The checks come first, then the plan of what the API server would change, and only then changes.

pub(crate) mod apply;
mod args;
mod difference;
pub(crate) mod loop_file;
pub(crate) mod manifests;
pub(crate) mod node_pods;
pub(crate) mod object;
pub(crate) mod options;
pub(crate) mod plan;
mod preflight;
pub(crate) mod record;
pub(crate) mod rendering;
mod rollout;
mod smoke;
pub(crate) mod temporary;

use std::io::Write as _;
use std::time::Duration;

use cli_runtime::connection::ClusterArgs;
use cli_runtime::output::{OutputError, ReportFormat};
use cli_runtime::{connection, output};
use kube::Client;
use serde_json::json;

pub(crate) use crate::error::InstallError;
pub(crate) use args::{Flags, RunFlags, directory, label};

use manifests::NAMESPACE;
use object::ObjectId;
use options::Options;
use plan::{Action, Step};
use record::Record;
use rendering::Rendering;

/// Command: an installation, or the change of one that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Install,
    Upgrade,
}

/// Prints a line about progress to standard error; standard output is for the plan.
pub(crate) fn print_progress(line: &str) {
    // Without a reader the error has no effect
    let _written = writeln!(std::io::stderr(), "{line}");
}

/// Runs `install` or `upgrade`.
pub(crate) async fn run(
    cluster: &ClusterArgs,
    mode: Mode,
    flags: Flags,
    run_flags: RunFlags,
) -> Result<(), InstallError> {
    check_namespace(cluster)?;
    if mode == Mode::Install && run_flags.render {
        let options = flags.onto(cluster.legacy, Options::default())?;
        return Ok(print_rendering(&rendering::render(&options)?, run_flags.output)?);
    }
    let client = connection::client(cluster).await?;
    let record = Record::read(&client).await?;
    let options = merge_options(mode, flags, cluster.legacy, record.as_ref())?;
    if run_flags.render {
        return Ok(print_rendering(&rendering::render(&options)?, run_flags.output)?);
    }
    Box::pin(change(client, options, record, &run_flags)).await
}

/// Creates the installation that the options describe, or changes the recorded one to it.
pub(crate) async fn change(
    client: Client,
    options: Options,
    record: Option<Record>,
    run_flags: &RunFlags,
) -> Result<(), InstallError> {
    let rendering = rendering::render(&options)?;
    preflight::check(&client, options.flavor(), &rendering, record.as_ref(), run_flags.adopt).await?;
    let steps = plan::plan(&client, &rendering, record.as_ref()).await?;
    if run_flags.dry_run || run_flags.diff {
        return Ok(print_plan(&steps, run_flags.output, run_flags.diff)?);
    }
    let limit = Duration::from_secs(run_flags.timeout);
    let is_done = plan::is_done(&steps);
    if !is_done && !run_flags.skip_node_checks {
        preflight::nodes::check(&client, &options, &rendering, limit).await?;
    }
    print_plan(&steps, run_flags.output, false)?;
    let installation = Installation { client, options, rendering, steps, before: record };
    installation.apply(limit).await?;
    if !is_done && !run_flags.no_smoke_test {
        installation.smoke_test(limit).await?;
    }
    Ok(())
}

/// Refuses another namespace than the one that the manifests name.
pub(crate) fn check_namespace(cluster: &ClusterArgs) -> Result<(), InstallError> {
    match cluster.namespace.as_deref() {
        None | Some(NAMESPACE) => Ok(()),
        Some(other) => Err(InstallError::Flag(format!(
            "the programs are installed in the namespace {NAMESPACE} and not in {other}; omit --namespace"
        ))),
    }
}

/// Returns the options of the record with what the flags change.
fn merge_options(mode: Mode, flags: Flags, legacy: bool, record: Option<&Record>) -> Result<Options, InstallError> {
    let start = match (mode, record) {
        (Mode::Upgrade, None) => return Err(InstallError::NotInstalled),
        (Mode::Upgrade, Some(record)) => record.options.clone(),
        (Mode::Install, _) => Options::default(),
    };
    let options = flags.onto(legacy, start)?;
    let Some(record) = record else { return Ok(options) };
    if record.options.legacy != options.legacy {
        let problem =
            "the API group of an installation cannot be changed, because its volumes belong to it: docs/switching.md";
        return Err(InstallError::Unfit(vec![problem.to_owned()]));
    }
    if mode == Mode::Install && !record.is_removed && record.options != options {
        let problem = "TopoLVM is installed with other options; use kubectl topolvm upgrade to change them";
        return Err(InstallError::Unfit(vec![problem.to_owned()]));
    }
    Ok(options)
}

fn print_rendering(rendering: &Rendering, format: ReportFormat) -> Result<(), OutputError> {
    match format {
        ReportFormat::Table | ReportFormat::Yaml => output::print(&rendering.yaml),
        ReportFormat::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": rendering.objects });
            output::print(&output::json(&list)?)
        }
    }
}

/// Prints the steps of a plan; JSON and YAML always contain differences.
pub(crate) fn print_plan(steps: &[Step], format: ReportFormat, with_differences: bool) -> Result<(), OutputError> {
    let lines = || plan::lines(steps, with_differences);
    output::print(&output::render_report(format, &json!({ "steps": steps }), lines)?)
}

/// A plan that is carried out.
struct Installation {
    client: Client,
    options: Options,
    rendering: Rendering,
    steps: Vec<Step>,
    before: Option<Record>,
}

impl Installation {
    async fn apply(&self, limit: Duration) -> Result<(), InstallError> {
        let client = &self.client;
        let recorded = self.record().await?;
        let (namespaces, rest): (Vec<_>, Vec<_>) =
            self.steps.iter().cloned().partition(|step| step.id.kind == "Namespace");
        apply::apply(client, &namespaces).await?;
        // What was applied is known, wherever this ends
        let mut all = recorded.clone();
        all.objects.extend(self.before.iter().flat_map(|before| before.objects.iter().cloned()));
        all.write(client, self.before.as_ref()).await?;
        let rest = self.attach_loop_files(rest, limit).await?;
        apply::apply(client, &rest).await?;
        let workloads: Vec<_> = self.rendering.ids().into_iter().filter(ObjectId::is_workload).collect();
        rollout::wait(client, &workloads, limit).await?;
        apply::prune(client, &rest, limit).await?;
        recorded.write(client, Some(&all)).await
    }

    /// Applies the DaemonSet that attaches loop files, before the configuration of lvmd contains their volume group,
    /// and returns the other steps.
    async fn attach_loop_files(&self, steps: Vec<Step>, limit: Duration) -> Result<Vec<Step>, InstallError> {
        let is_attaching = |step: &Step| step.id.kind == "DaemonSet" && step.id.name == loop_file::NAME;
        let (first, rest): (Vec<_>, Vec<_>) = steps.into_iter().partition(is_attaching);
        apply::apply(&self.client, &first).await?;
        let changed = first.iter().filter(|step| matches!(step.action, Action::Create | Action::Change));
        let changed: Vec<_> = changed.map(|step| step.id.clone()).collect();
        if !changed.is_empty() {
            rollout::wait(&self.client, &changed, limit).await?;
        }
        Ok(first.into_iter().filter(|step| step.action == Action::Remove).chain(rest).collect())
    }

    /// Returns the record of the finished installation.
    async fn record(&self) -> Result<Record, InstallError> {
        let namespace = self.steps.iter().find(|step| step.id.kind == "Namespace").map(|step| &step.id);
        let has_made_namespace = match (&self.before, namespace) {
            (Some(before), _) => before.has_made_namespace,
            (None, Some(id)) => id.get(&self.client).await?.is_none_or(|found| object::is_ours(&found)),
            (None, None) => false,
        };
        Ok(Record {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            options: self.options.clone(),
            objects: self.rendering.ids().into_iter().collect(),
            has_made_namespace,
            is_removed: false,
        })
    }

    async fn smoke_test(&self, limit: Duration) -> Result<(), InstallError> {
        let Some(class) = self.options.smoke_test_class() else {
            print_progress("smoke test skipped: this installation has no StorageClass");
            return Ok(());
        };
        smoke::test(&self.client, class, self.rendering.image(), limit).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(options: Options, is_removed: bool) -> Record {
        let version = "1".to_owned();
        Record { version, options, objects: [].into(), has_made_namespace: true, is_removed }
    }

    #[test]
    fn an_upgrade_wants_an_installation_and_keeps_its_options() {
        let merge_options = |record: Option<&Record>| merge_options(Mode::Upgrade, Flags::default(), false, record);
        assert!(matches!(merge_options(None), Err(InstallError::NotInstalled)));
        let options = Options { image: Some("r/t:1".to_owned()), legacy: true, ..Options::default() };
        assert_eq!(merge_options(Some(&record(options.clone(), false))).unwrap(), options);
    }

    #[test]
    fn a_second_install_is_the_first_one_again() {
        let merge_options = |record: &Record| merge_options(Mode::Install, Flags::default(), false, Some(record));
        assert!(merge_options(&record(Options::default(), false)).is_ok());
        let other = Options { image: Some("r/t:1".to_owned()), ..Options::default() };
        assert!(matches!(merge_options(&record(other.clone(), false)), Err(InstallError::Unfit(_))));
        // What was removed is installed again
        assert!(merge_options(&record(other, true)).is_ok());
    }

    #[test]
    fn the_api_group_stays() {
        let installed = record(Options::default(), false);
        let error = merge_options(Mode::Upgrade, Flags::default(), true, Some(&installed)).unwrap_err();
        assert!(error.to_string().contains("docs/switching.md"));
    }
}
