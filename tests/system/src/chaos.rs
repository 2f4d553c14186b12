//! Chaos test: creates, expands, copies and deletes volumes in a real cluster while programs are killed, nodes
//! disturbed and the API server is unavailable. Afterwards Kubernetes, lvmd and LVM must have the same volumes: those
//! that the plan leaves behind.

mod abandoned;
mod agreement;
mod class;
mod disagreement;
mod disturb;
mod disturbance;
mod expected;
mod fields;
mod history;
mod lineage;
mod node_deleted;
mod objects;
mod outage;
mod plan;
mod programs;
mod random;
mod remap;
mod report;
#[cfg(test)]
mod sample;
mod state;
mod steps;
mod workload;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::StreamExt as _;
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::{THIN_CLASS, TopolvmSpec};
use tokio::runtime;
use topolvm_api::ApiFlavor;

use self::abandoned::Abandoned;
use self::agreement::disagreements;
use self::class::Class;
pub use self::disagreement::Counts;
use self::disturb::Disturbed;
pub use self::disturbance::DisturbanceKind;
use self::expected::Expected;
use self::history::{EVENTS, Fact, History};
use self::objects::Objects;
use self::plan::{Event, Plan, Sequence};
use self::programs::Programs;
pub use self::report::Report;
use self::state::State;
use self::steps::SNAPSHOT_CLASS;
use crate::manifests::{snapshot_class, storage_class};

const LOOK_AGAIN: Duration = Duration::from_millis(300);
/// Timeout for the start of a workload's pod.
const POD_START: Duration = Duration::from_mins(2);

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seed of the random numbers from which the plan is made.
    pub seed: u64,
    /// Number of sequences of steps.
    pub sequences: usize,
    /// Number of sequences that run at the same time.
    pub workers: usize,
    /// Timeout of one step, and of the wait at the end until all states agree.
    pub patience: Duration,
    /// Restricts the run to this kind of disturbance, more often than usual, without kills and outages.
    pub alone: Option<DisturbanceKind>,
}

/// Returns the specification of the cluster for a run: so many nodes with a thin class and a second volume group, and
/// all sidecars. Of two successive seeds one has csi-provisioner with its default flags.
pub fn spec(nodes: u8, seed: u64) -> Result<TopolvmSpec> {
    let spec = remap::with_small_group(TopolvmSpec::nodes(nodes)?.with_thin_class().with_snapshots())?;
    Ok(if seed.is_multiple_of(2) { spec } else { spec.with_upstream_provisioner() })
}

/// Counts of outages and disturbances, and the duration of all outages.
#[derive(Debug, Default)]
struct Happened {
    outages: usize,
    away: Duration,
    disturbances: BTreeMap<DisturbanceKind, usize>,
}

/// A cluster of [`spec`] without volumes.
#[derive(Clone, Copy, Debug)]
pub struct Chaos<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Nodes of the cluster.
    pub nodes: &'a [Node],
    /// Specification from which the cluster was made.
    pub spec: &'a TopolvmSpec,
}

/// Number of steps that have been done, for which the events wait.
#[derive(Debug, Default)]
struct Progress {
    steps: Mutex<usize>,
    changed: Condvar,
}

impl Progress {
    fn advance(&self) {
        self.set(|steps| steps.saturating_add(1));
    }

    fn finish(&self) {
        self.set(|_| usize::MAX);
    }

    fn set(&self, change: impl FnOnce(usize) -> usize) {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        *steps = change(*steps);
        self.changed.notify_all();
    }

    fn wait(&self, wanted: usize) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(steps, |steps| *steps < wanted));
    }
}

impl Chaos<'_> {
    /// Runs the plan of a seed and deletes all volumes at the end. The error has the seed and the history of the
    /// volumes concerned.
    pub fn run(&self, settings: Settings) -> Result<Report> {
        let history = History::new(&self.cluster.log("chaos"))?;
        self.run_with(settings, &history).with_context(|| format!("seed {}", settings.seed))
    }

    fn run_with(&self, settings: Settings, history: &History) -> Result<Report> {
        let plan = Plan::new(settings.seed, settings.sequences, settings.alone);
        for (class, device_class) in [(Class::Thick, None), (Class::Thin, Some(THIN_CLASS))] {
            for (name, immediate) in [(class.name(), true), (class.waiting_name(), false)] {
                self.cluster.apply(&storage_class(ApiFlavor::TopoLvm, name, device_class, immediate).to_string())?;
            }
        }
        self.cluster.apply(&snapshot_class(ApiFlavor::TopoLvm, SNAPSHOT_CLASS).to_string())?;

        let programs = Programs::start(self.cluster, self.nodes, self.spec, history)?;
        let stop = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let keeping = scope.spawn(|| programs.keep(&stop));
            let report = Disturbed::start(self.cluster, self.nodes, history, POD_START)
                .context("start the workloads")
                .and_then(|disturbed| self.disturb_and_check(settings, &plan, history, &programs, &disturbed));
            stop.store(true, Ordering::Relaxed);
            keeping.join().map_err(|_| anyhow!("a thread panicked"))??;
            report
        })?;
        programs.end()?;
        Ok(report)
    }

    fn disturb_and_check(
        &self,
        settings: Settings,
        plan: &Plan,
        history: &History,
        programs: &Programs<'_>,
        disturbed: &Disturbed<'_>,
    ) -> Result<Report> {
        let start = Instant::now();
        let progress = Progress::default();
        let (seconds, mut happened) = thread::scope(|scope| {
            let working = scope.spawn(|| {
                let done = self.work(settings, plan, history, &progress);
                progress.finish();
                done
            });
            let happened = self.disturb(plan, history, programs, disturbed, &progress);
            let seconds = working.join().map_err(|_| anyhow!("a thread panicked"))?;
            // Why the sequences could not go on may be in the disturbance
            let happened = happened?;
            Ok::<_, anyhow::Error>((seconds?, happened))
        })?;
        let working = start.elapsed();

        let start = Instant::now();
        let expected = disturbed.workloads.iter().fold(Expected::after(&plan.sequences), |expected, workload| {
            expected.with_claim(workload.name(), workload.class(), workload::MEBIBYTES)
        });
        let settled = self.settle(settings.patience, history, &expected)?;
        let settling = start.elapsed();
        programs.check()?;
        let mut abandoned = settled.abandoned;
        if let Some(node) = plan.deleted_node {
            let doomed = disturbed.delete_node(node, self.spec)?;
            let gone: Vec<_> = doomed.claims.into_iter().chain(doomed.snapshots).collect();
            let is_workload = |name: &String| disturbed.workloads.iter().any(|workload| workload.name() == name);
            let gone: Vec<_> = gone.into_iter().filter(|name| !is_workload(name)).collect();
            abandoned += self.settle(settings.patience, history, &expected.clone().without(&gone))?.abandoned;
            *happened.disturbances.entry(DisturbanceKind::NodeDeleted).or_default() += 1;
        }
        disturbed.workloads.iter().try_for_each(workload::Workload::check)?;

        let start = Instant::now();
        self.cluster.kubectl_ok(["delete", "pods", "--all", "--timeout=120s"])?;
        for kind in ["volumesnapshots", "persistentvolumeclaims"] {
            self.cluster.kubectl_ok(["delete", kind, "--all", "--wait=false"])?;
        }
        let cleared = self.settle(settings.patience, history, &Expected::default())?;
        let (kills, sidecar_exits) = programs.counts();
        Ok(Report {
            sequences: plan.sequences.len(),
            steps: seconds.len(),
            working,
            settling,
            clearing: start.elapsed(),
            expected: expected.len(),
            kept: settled.volumes,
            settled: settled.counts,
            cleared: cleared.counts,
            abandoned: abandoned + cleared.abandoned,
            kills,
            outages: (happened.outages, happened.away),
            disturbances: happened.disturbances,
            sidecar_exits,
            seconds,
        })
    }

    /// Runs all sequences, `workers` at the same time. Returns the seconds of each step, sorted.
    fn work(&self, settings: Settings, plan: &Plan, history: &History, progress: &Progress) -> Result<Vec<f64>> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let results: Vec<Result<Vec<f64>>> = runtime.block_on(async {
            let objects = Objects::new(self.cluster.client().await?, settings.patience);
            let all = plan.sequences.iter().map(|sequence| follow(sequence, &objects, history, progress));
            Ok::<_, anyhow::Error>(futures::stream::iter(all).buffer_unordered(settings.workers.max(1)).collect().await)
        })?;
        let mut seconds = Vec::new();
        let mut failures = Vec::new();
        for result in results {
            match result {
                Ok(more) => seconds.extend(more),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
        ensure!(failures.is_empty(), "{} sequences failed:\n{}", failures.len(), failures.join("\n"));
        seconds.sort_by(f64::total_cmp);
        Ok(seconds)
    }

    /// Runs the events of the plan, each after its number of steps.
    fn disturb(
        &self,
        plan: &Plan,
        history: &History,
        programs: &Programs<'_>,
        disturbed: &Disturbed<'_>,
        progress: &Progress,
    ) -> Result<Happened> {
        let mut happened = Happened::default();
        for planned in &plan.events {
            progress.wait(planned.after);
            match &planned.event {
                Event::Kill(victim) => programs.kill(*victim)?,
                &Event::Outage { outage, seconds, meanwhile } => {
                    history.record(EVENTS, Fact::Away { outage, seconds });
                    let half = Duration::from_secs(seconds) / 2;
                    let start = Instant::now();
                    outage.during(self.cluster, self.nodes, || {
                        sleep(half);
                        meanwhile.map_or(Ok(()), |victim| programs.kill(victim))?;
                        sleep(half);
                        Ok(())
                    })?;
                    history.record(EVENTS, Fact::Back);
                    happened.outages += 1;
                    happened.away += start.elapsed();
                }
                Event::Disturb { node, disturbance } => {
                    disturbed.happen(disturbance, *node)?;
                    *happened.disturbances.entry(disturbance.kind()).or_default() += 1;
                }
            }
        }
        Ok(happened)
    }

    /// Waits until Kubernetes, lvmd and LVM agree, and have what is expected. Deletes volumes that csi-provisioner has
    /// abandoned.
    fn settle(&self, patience: Duration, history: &History, expected: &Expected) -> Result<Settled> {
        let mut end = Instant::now() + patience;
        let mut abandoned = Abandoned::none();
        let mut deleted = 0;
        let mut said = String::new();
        loop {
            let state = State::read(self.cluster, self.nodes);
            let now = state.as_ref().map(|state| [disagreements(state), expected.compare(state)].concat());
            let open = match &now {
                Ok(now) => now.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
                Err(error) => format!("the state cannot be read: {error:#}"),
            };
            if open != said {
                history.record(EVENTS, format!("settling: {open}"));
                said = open;
            }
            if let (Ok(state), Ok(now)) = (&state, &now) {
                if now.is_empty() {
                    return Ok(Settled { volumes: state.objects.len(), counts: Counts::of(now), abandoned: deleted });
                }
                if abandoned.is_all(now, history, self.cluster)? {
                    deleted += abandoned.delete(self.cluster)?;
                    end = Instant::now() + patience;
                    abandoned = Abandoned::none();
                }
            }
            if Instant::now() >= end {
                let now = now.map_err(|error| anyhow!("{error:#}"))?;
                let (counts, text) = (Counts::of(&now), report::explain(&now, history, self.cluster, self.nodes));
                bail!("not everything is as it should be after {patience:?}: {counts}\n{text}");
            }
            sleep(LOOK_AGAIN);
        }
    }
}

/// Number of volumes in a consistent state, and of those deleted on the way to it.
#[derive(Clone, Copy, Debug)]
struct Settled {
    /// Number of LogicalVolumes.
    volumes: usize,
    counts: Counts,
    abandoned: usize,
}

/// Runs the steps of a sequence. Returns the seconds of each.
async fn follow(sequence: &Sequence, objects: &Objects, history: &History, progress: &Progress) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for step in &sequence.steps {
        let start = history.elapsed();
        history.record(&sequence.name, step.to_string());
        let done = step.run(objects, |fact| history.record(&sequence.name, fact)).await;
        progress.advance();
        let took = history.elapsed().saturating_sub(start);
        history.record(&sequence.name, format!("  took {:.2} s", took.as_secs_f64()));
        done.with_context(|| {
            let history = history.of(std::slice::from_ref(&sequence.name));
            format!("{} {step}: this failed after {:.0} s; history:\n{history}", sequence.name, took.as_secs_f64())
        })?;
        seconds.push(took.as_secs_f64());
    }
    Ok(seconds)
}
