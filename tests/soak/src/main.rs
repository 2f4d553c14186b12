//! `make soak ONLY=csi`: long random runs with kills, outages and faults of nodes. `make soak ONLY=scheduling`: bursts
//! of pods on nodes that are nearly full. `make soak ONLY=monitoring`: ten minutes in which no alert fires, and
//! `monitoring-faults`, in which each fault raises its alert. `make soak ONLY=restarts`: every container is restarted
//! 30 times, and the host is as after the first.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "figures for a person in a terminal")]

mod chaos;

use std::iter;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, id};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum as _};
use system_tests::scheduling::{self, CAPACITY_INTERVAL, Mode, Outcome, Sum};
use system_tests::{monitoring, product_images, restarts};
use testbed::topolvm::{self, Topolvm, TopolvmSpec};
use testbed::{machine, program};

use crate::chaos::{Chaos, Controllers, DisturbanceKind, Settings};

#[derive(Debug, Parser)]
#[command(about = "Disturbs the product for a long time, and checks that nothing is lost, leaked or duplicated")]
struct Args {
    /// Only the parts whose names begin like this, for example csi.
    #[arg(long, default_value = "")]
    only: String,
    /// Seed of the steps and events of a run, which prints it.
    #[arg(long)]
    seed: Option<u64>,
    /// Number of sequences of creates, expansions, snapshots, copies and deletes.
    #[arg(long, default_value_t = 200)]
    sequences: usize,
    /// Number of concurrent sequences.
    #[arg(long, default_value_t = 10)]
    workers: usize,
    /// Nodes of the cluster.
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// This kind of disturbance and nothing else: neither kills nor outages.
    #[arg(long)]
    disturb: Option<DisturbanceKind>,
    /// The programs that create, delete, expand and snapshot the volumes of the sequences.
    #[arg(long, value_enum, default_value_t)]
    controllers: Controllers,
    /// Number of bursts of pods in each mode.
    #[arg(long, default_value_t = 20)]
    bursts: u64,
    /// Pods of a burst.
    #[arg(long, default_value_t = 60)]
    pods: usize,
    /// Bursts in this mode only.
    #[arg(long)]
    mode: Option<Mode>,
    /// Number of restarts of each container.
    #[arg(long, default_value_t = 30)]
    restarts: u32,
    /// Directory for the logs of a failed run.
    #[arg(long, default_value = "/var/tmp/topolvm-soak-logs")]
    logs: PathBuf,
}

/// A part of the soak: its name, and the function that runs it in an empty directory.
type Part = (&'static str, fn(&Path, &Args, u64) -> Result<String>);

const PARTS: [Part; 5] = [
    ("csi", csi),
    ("scheduling", schedule),
    ("monitoring", monitor),
    ("monitoring-faults", inject_faults),
    ("restarts", restart),
];

/// Duration for which no alert may fire.
const SILENCE: Duration = Duration::from_mins(10);

fn main() -> ExitCode {
    if let Some(code) = program::serve() {
        return code;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let Some(missing) = machine::missing_for_clusters() {
        bail!("{missing}");
    }
    let wanted = |part: &&Part| part.0.starts_with(&args.only);
    if !PARTS.iter().any(|part| wanted(&part)) {
        bail!("no part begins with {:?}; there are: {}", args.only, PARTS.map(|part| part.0).join(", "));
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let seed = args.seed.unwrap_or_else(|| u64::from(time.subsec_nanos()) ^ u64::from(id()));
    for (name, part) in PARTS.iter().filter(wanted) {
        println!("soak {name}: SEED={seed}");
        let directory = tempfile::Builder::new().prefix("topolvm-soak-").tempdir_in("/var/tmp")?;
        let report = part(directory.path(), args, seed).with_context(|| format!("soak {name} with SEED={seed}"))?;
        println!("{report}");
    }
    Ok(())
}

/// Runs the chaos test with a seed and returns its report.
fn csi(directory: &Path, args: &Args, seed: u64) -> Result<String> {
    let spec = chaos::spec(args.nodes, seed)?;
    let Topolvm { cluster, nodes } = topolvm::up_with(&directory.join("c"), &spec)?;
    // A minute without an API server, and others soon after it: after each, client-go in the sidecars pauses for up to
    // a minute before it retries
    let patience = Duration::from_mins(5);
    let Args { sequences, workers, disturb: only, controllers, .. } = *args;
    let settings = Settings { seed, sequences, workers, patience, only, controllers };
    let outcome = Chaos { cluster: &cluster, nodes: &nodes, spec: &spec }.run(settings);
    cluster.down(outcome.is_err().then_some(args.logs.as_path()))?;
    outcome.map(|report| report.to_string())
}

/// Runs bursts of successive seeds in each mode, and without reservations, where requests must be refused. Returns a
/// table.
fn schedule(directory: &Path, args: &Args, seed: u64) -> Result<String> {
    let spec = TopolvmSpec { embeds_controllers: false, ..TopolvmSpec::nodes(0)? };
    let Topolvm { cluster, .. } = topolvm::up_with(&directory.join("c"), &spec)?;
    let modes = args.mode.map_or_else(|| Mode::value_variants().to_vec(), |mode| vec![mode]);
    let run = |mode: Mode| -> Result<Vec<Outcome>> {
        let burst = |seed: u64| {
            let settings = scheduling::Settings { mode, seed, pods: args.pods, claims: 2 };
            scheduling::run_burst(&cluster, &spec, settings).inspect(|outcome| println!("{outcome}"))
        };
        (seed..seed + args.bursts).map(burst).collect()
    };
    let in_mode = |mode: Mode| anyhow::Ok((mode, mode.run(&cluster, &spec, CAPACITY_INTERVAL, || run(mode))?));
    let report = modes.into_iter().map(in_mode).collect::<Result<Vec<_>>>().and_then(|runs| summarize(&runs));
    cluster.down(report.is_err().then_some(args.logs.as_path()))?;
    report
}

/// Returns the table of the modes, or fails with it.
fn summarize(runs: &[(Mode, Vec<Outcome>)]) -> Result<String> {
    let rows = runs.iter().map(|(mode, outcomes)| Sum(*mode, outcomes).to_string());
    let table = iter::once(Sum::HEAD.to_owned()).chain(rows).collect::<Vec<_>>().join("\n");
    for (mode, outcomes) in runs {
        if *mode == Mode::ExtenderWithoutReservations {
            let is_seen = outcomes.iter().any(|outcome| outcome.refused > 0);
            ensure!(
                is_seen,
                "{table}\nwithout reservations no request was refused, so the bursts do not test reservations"
            );
            continue;
        }
        let wrong = outcomes.iter().filter(|outcome| !outcome.is_right()).count();
        ensure!(
            wrong == 0,
            "{table}\nin {wrong} bursts of {mode} pods wait although a node has free space, or exceed a node"
        );
    }
    Ok(format!("{table}\nall bursts are right"))
}

/// Uses a healthy cluster, with the product as pods, while Prometheus evaluates the alerts.
fn monitor(directory: &Path, args: &Args, _seed: u64) -> Result<String> {
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    let Topolvm { cluster, nodes } = topolvm::up_with(&directory.join("c"), &spec)?;
    let outcome = nodes
        .first()
        .context("the cluster has no node")
        .and_then(|node| monitoring::check_silence(&cluster, node, directory, SILENCE));
    cluster.down(outcome.is_err().then_some(args.logs.as_path()))?;
    outcome
}

/// Injects the faults of the alerts, except those that the cluster test injects.
fn inject_faults(directory: &Path, args: &Args, _seed: u64) -> Result<String> {
    let spec = monitoring::faults_spec(&directory.join("manifests"))?;
    let Topolvm { cluster, nodes } = topolvm::up_with(&directory.join("c"), &spec)?;
    let outcome = nodes
        .first()
        .context("the cluster has no node")
        .and_then(|node| monitoring::check_faults(&cluster, node, &spec, directory));
    cluster.down(outcome.is_err().then_some(args.logs.as_path()))?;
    outcome
}

/// Restarts every container of the product as pods, and kubelet, and compares what is on the host.
fn restart(directory: &Path, args: &Args, _seed: u64) -> Result<String> {
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    let Topolvm { cluster, nodes } = topolvm::up_with(&directory.join("c"), &spec)?;
    let outcome = nodes.first().context("the cluster has no node").and_then(|node| {
        restarts::check_host(&cluster, node, "topolvm-provisioner", "320Mi", args.restarts)?;
        restarts::check_quiet(&cluster)?;
        Ok(format!(
            "the host is as before after {} restarts, and no Event came in the minute after them",
            args.restarts
        ))
    });
    cluster.down(outcome.is_err().then_some(args.logs.as_path()))?;
    outcome
}
