//! A run of the chaos test: concurrent sequences and events, then the checks, then the deletion of everything.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::StreamExt as _;
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::TopolvmSpec;
use tokio::runtime;

use super::Settings;
use super::abandoned::Abandoned;
use super::agreement::disagreements;
use super::disagreement::Counts;
use super::disturb::DisturbedNodes;
use super::disturbance::DisturbanceKind;
use super::expected::Expected;
use super::history::{EVENTS, Fact, History};
use super::objects::Objects;
use super::plan::{Event, Plan, Sequence};
use super::programs::Programs;
use super::report::{Report, explain};
use super::state::State;
use super::workload::{MEBIBYTES, Workload};

const POLL_INTERVAL: Duration = Duration::from_millis(300);

/// A run whose programs and workloads have been started.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) nodes: &'a [Node],
    pub(super) spec: &'a TopolvmSpec,
    pub(super) settings: Settings,
    pub(super) plan: &'a Plan,
    pub(super) history: &'a History,
    pub(super) programs: &'a Programs<'a>,
    pub(super) disturbed: &'a DisturbedNodes<'a>,
}

/// Counts of outages and disturbances, and the duration of all outages.
#[derive(Debug, Default)]
struct EventTotals {
    outages: usize,
    away: Duration,
    disturbances: BTreeMap<DisturbanceKind, usize>,
}

/// Number of volumes in a consistent state, and of those deleted on the way to it.
#[derive(Clone, Copy, Debug)]
struct Agreement {
    /// Number of LogicalVolumes.
    volumes: usize,
    counts: Counts,
    abandoned: usize,
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

    fn wait_for_steps(&self, wanted: usize) {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(steps, |steps| *steps < wanted));
    }
}

impl Run<'_> {
    /// Runs the plan, checks its outcome, and deletes everything.
    pub(super) fn run(&self) -> Result<Report> {
        let start = Instant::now();
        let (seconds, mut totals) = self.execute_plan()?;
        let working = start.elapsed();

        let start = Instant::now();
        let expected = self.expected();
        let settled = self.wait_for_agreement(&expected)?;
        let settling = start.elapsed();
        self.programs.check()?;
        let mut abandoned = settled.abandoned;
        if self.plan.deletes_definition {
            self.disturbed.delete_definition()?;
            abandoned += self.wait_for_agreement(&expected)?.abandoned;
            *totals.disturbances.entry(DisturbanceKind::DefinitionDeleted).or_default() += 1;
        }
        if let Some(node) = self.plan.deleted_node {
            abandoned += self.delete_node(node, &expected)?;
            *totals.disturbances.entry(DisturbanceKind::NodeDeleted).or_default() += 1;
        }
        self.disturbed.workloads.iter().try_for_each(Workload::check)?;

        let start = Instant::now();
        let cleared = self.delete_everything()?;
        let (kills, sidecar_exits) = self.programs.counts();
        Ok(Report {
            sequences: self.plan.sequences.len(),
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
            outages: (totals.outages, totals.away),
            disturbances: totals.disturbances,
            sidecar_exits,
            seconds,
        })
    }

    /// Runs sequences and events at the same time. Returns the seconds of each step, sorted, and totals of the events.
    fn execute_plan(&self) -> Result<(Vec<f64>, EventTotals)> {
        let progress = Progress::default();
        thread::scope(|scope| {
            let working = scope.spawn(|| {
                let done = self.run_sequences(&progress);
                progress.finish();
                done
            });
            let totals = self.run_events(&progress);
            let seconds = working.join().map_err(|_| anyhow!("a thread panicked"))?;
            // The injected fault may be the reason why the sequences failed
            let totals = totals?;
            Ok((seconds?, totals))
        })
    }

    /// Returns the claims and snapshots that the plan leaves behind, and those of the workloads.
    fn expected(&self) -> Expected {
        self.disturbed.workloads.iter().fold(Expected::after(&self.plan.sequences), |expected, workload| {
            expected.with_claim(workload.name(), workload.class(), MEBIBYTES)
        })
    }

    /// Deletes a Node and registers it again, and waits until its claims and snapshots are deleted, except those of the
    /// workloads, which are recreated. Returns the number of abandoned volumes.
    fn delete_node(&self, node: usize, expected: &Expected) -> Result<usize> {
        let deleted = self.disturbed.delete_node(node, self.spec)?;
        let is_workload = |name: &String| self.disturbed.workloads.iter().any(|workload| workload.name() == name);
        let deleted = deleted.claims.into_iter().chain(deleted.snapshots);
        let gone: Vec<_> = deleted.filter(|name| !is_workload(name)).collect();
        Ok(self.wait_for_agreement(&expected.clone().without(&gone))?.abandoned)
    }

    /// Deletes all pods, snapshots and claims, and waits until no volume is left.
    fn delete_everything(&self) -> Result<Agreement> {
        self.cluster.kubectl_ok(["delete", "pods", "--all", "--timeout=180s"])?;
        for kind in ["volumesnapshots", "persistentvolumeclaims"] {
            self.cluster.kubectl_ok(["delete", kind, "--all", "--wait=false"])?;
        }
        self.wait_for_agreement(&Expected::default())
    }

    /// Runs all sequences, `workers` at the same time. Returns the seconds of each step, sorted.
    fn run_sequences(&self, progress: &Progress) -> Result<Vec<f64>> {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let results: Vec<Result<Vec<f64>>> = runtime.block_on(async {
            let objects = Objects::new(self.cluster.client().await?, self.settings.patience);
            let all =
                self.plan.sequences.iter().map(|sequence| run_sequence(sequence, &objects, self.history, progress));
            Ok::<_, anyhow::Error>(
                futures::stream::iter(all).buffer_unordered(self.settings.workers.max(1)).collect().await,
            )
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
    fn run_events(&self, progress: &Progress) -> Result<EventTotals> {
        let mut totals = EventTotals::default();
        for planned in &self.plan.events {
            progress.wait_for_steps(planned.after);
            match &planned.event {
                Event::Kill(victim) => self.programs.kill(*victim)?,
                Event::ChangeControllers => self.programs.change_controllers()?,
                &Event::Outage { outage, seconds, meanwhile } => {
                    self.history.record(EVENTS, Fact::Away { outage, seconds });
                    let half = Duration::from_secs(seconds) / 2;
                    let start = Instant::now();
                    outage.run_during(self.cluster, self.nodes, || {
                        sleep(half);
                        meanwhile.map_or(Ok(()), |victim| self.programs.kill(victim))?;
                        sleep(half);
                        Ok(())
                    })?;
                    self.history.record(EVENTS, Fact::Back);
                    totals.outages += 1;
                    totals.away += start.elapsed();
                }
                Event::Disturb { node, disturbance } => {
                    self.disturbed.disturb_node(disturbance, *node)?;
                    *totals.disturbances.entry(disturbance.kind()).or_default() += 1;
                }
            }
        }
        Ok(totals)
    }

    /// Waits until Kubernetes, lvmd and LVM agree, and match the expected state. Deletes volumes that a provisioner has
    /// abandoned.
    fn wait_for_agreement(&self, expected: &Expected) -> Result<Agreement> {
        let Self { settings: Settings { patience, controllers, .. }, history, .. } = *self;
        let mut end = Instant::now() + patience;
        let mut abandoned = Abandoned::by(controllers.provisioners());
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
                    return Ok(Agreement { volumes: state.objects.len(), counts: Counts::of(now), abandoned: deleted });
                }
                if abandoned.explains_all(now, history, self.cluster)? {
                    deleted += abandoned.delete(self.cluster)?;
                    end = Instant::now() + patience;
                    abandoned = Abandoned::by(controllers.provisioners());
                }
            }
            if Instant::now() >= end {
                let now = now.map_err(|error| anyhow!("{error:#}"))?;
                let (counts, text) = (Counts::of(&now), explain(&now, history, self.cluster, self.nodes));
                bail!("not everything is as it should be after {patience:?}: {counts}\n{text}");
            }
            sleep(POLL_INTERVAL);
        }
    }
}

/// Runs the steps of a sequence. Returns the seconds of each.
async fn run_sequence(
    sequence: &Sequence,
    objects: &Objects,
    history: &History,
    progress: &Progress,
) -> Result<Vec<f64>> {
    let mut seconds = Vec::new();
    for step in &sequence.steps {
        let start = history.elapsed();
        history.record(&sequence.name, step.to_string());
        let done = step.run(objects, |fact| history.record(&sequence.name, fact)).await;
        progress.advance();
        let took = history.elapsed().saturating_sub(start);
        history.record(&sequence.name, format!("  took {:.2} s", took.as_secs_f64()));
        done.with_context(|| {
            let history = history.excerpt(std::slice::from_ref(&sequence.name));
            format!("{} {step}: this failed after {:.0} s; history:\n{history}", sequence.name, took.as_secs_f64())
        })?;
        seconds.push(took.as_secs_f64());
    }
    Ok(seconds)
}
