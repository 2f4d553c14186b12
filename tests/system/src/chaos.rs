//! Volumes are made, grown, copied and deleted in a real cluster while programs are killed and the API server goes away. When
//! everything has settled, Kubernetes, lvmd and LVM must have the same volumes: those that the plan leaves behind.

mod abandoned;
mod agreement;
mod disagreement;
mod expected;
mod fields;
mod history;
mod lineage;
mod objects;
mod outage;
mod plan;
mod programs;
mod random;
mod report;
#[cfg(test)]
mod sample;
mod state;
mod steps;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures::StreamExt as _;
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::sidecars;
use testbed::topolvm::{THIN_CLASS, TopolvmSpec};
use tokio::runtime;
use topolvm_api::ApiFlavor;

use self::abandoned::Abandoned;
use self::agreement::disagreements;
pub use self::disagreement::Counts;
use self::expected::Expected;
use self::history::{EVENTS, Fact, History};
use self::objects::Objects;
use self::plan::{Class, Event, Plan, Sequence};
use self::programs::Programs;
pub use self::report::Report;
use self::state::State;
use self::steps::SNAPSHOT_CLASS;
use crate::manifests::{snapshot_class, storage_class};

const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Chooses everything.
    pub seed: u64,
    /// Sequences of steps.
    pub sequences: usize,
    /// How many sequences go on at the same time.
    pub workers: usize,
    /// How long one step may take, and how long it may take at the end until everything agrees.
    pub patience: Duration,
}

/// A cluster with the product, a thin class, and no volumes.
#[derive(Clone, Copy, Debug)]
pub struct Chaos<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Its nodes.
    pub nodes: &'a [Node],
    /// What it was made of.
    pub spec: &'a TopolvmSpec,
}

/// How many steps have been done.
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
    /// Does it all, and ends with a cluster without volumes. The error has the seed and the history of what went wrong.
    pub fn run(&self, settings: Settings) -> Result<Report> {
        let history = History::new(&self.cluster.log("chaos"))?;
        self.run_with(settings, &history).with_context(|| format!("seed {}", settings.seed))
    }

    fn run_with(&self, settings: Settings, history: &History) -> Result<Report> {
        let plan = Plan::new(settings.seed, settings.sequences);
        sidecars::apply_snapshot_crds(self.cluster)?;
        for (class, device_class) in [(Class::Thick, None), (Class::Thin, Some(THIN_CLASS))] {
            self.cluster.apply(&storage_class(ApiFlavor::TopoLvm, class.name(), device_class, true).to_string())?;
        }
        self.cluster.apply(&snapshot_class(ApiFlavor::TopoLvm, SNAPSHOT_CLASS).to_string())?;

        let programs = Programs::start(self.cluster, self.nodes, self.spec, history)?;
        let stop = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let keeping = scope.spawn(|| programs.keep(&stop));
            let report = self.disturb_and_check(settings, &plan, history, &programs);
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
    ) -> Result<Report> {
        let start = Instant::now();
        let progress = Progress::default();
        let (seconds, outages) = thread::scope(|scope| {
            let working = scope.spawn(|| {
                let done = self.work(settings, plan, history, &progress);
                progress.finish();
                done
            });
            let outages = self.disturb(plan, history, programs, &progress);
            let seconds = working.join().map_err(|_| anyhow!("a thread panicked"))??;
            Ok::<_, anyhow::Error>((seconds, outages?))
        })?;
        let working = start.elapsed();

        let start = Instant::now();
        let expected = Expected::after(&plan.sequences);
        let settled = self.settle(settings.patience, history, &expected)?;
        let settling = start.elapsed();
        programs.check()?;

        let start = Instant::now();
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
            abandoned: settled.abandoned + cleared.abandoned,
            kills,
            outages,
            sidecar_exits,
            seconds,
        })
    }

    /// Does all sequences, some at the same time. Returns the seconds of each step, sorted.
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

    /// Lets the events happen. Returns the number of outages and how long they were together.
    fn disturb(
        &self,
        plan: &Plan,
        history: &History,
        programs: &Programs<'_>,
        progress: &Progress,
    ) -> Result<(usize, Duration)> {
        let (mut outages, mut away) = (0, Duration::ZERO);
        for planned in &plan.events {
            progress.wait(planned.after);
            match planned.event {
                Event::Kill(victim) => programs.kill(victim)?,
                Event::Outage { outage, seconds, meanwhile } => {
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
                    outages += 1;
                    away += start.elapsed();
                }
            }
        }
        Ok((outages, away))
    }

    /// Waits until everybody agrees, and what there is is what is expected. On the way it deletes what csi-provisioner has abandoned.
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

/// What there was when everything was as it should be.
#[derive(Clone, Copy, Debug)]
struct Settled {
    /// LogicalVolumes.
    volumes: usize,
    counts: Counts,
    abandoned: usize,
}

/// Does one sequence. Returns the seconds of each step.
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
