//! Runs the scenarios with a program under test in a new cluster, all at the same time, and returns their outcomes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::shared::TestCluster;
use testbed::cluster::Cluster;
use testbed::failure::WithState as _;
use testbed::topolvm::CONTROLLER;
use tokio::runtime::{self, Runtime};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use super::condition::holds;
use super::kinds::Kind;
use super::merge::merge;
use super::observed::{Observed, State};
use super::outcome::{self, BARRIER, members};
use super::scenario::{
    self, ALPHA, BETA, GROUP_HANDLE, HANDLE, MEMBER_HANDLES, SELF, Scenario, ScenarioNode, Step, Target, Until, VOLUME,
    VOLUME_ID, immediate_on, size,
};
use super::tested::{Tested, Work};

/// Time that a scenario has. Most take seconds, those with a timeout of the provisioner half a minute; a busy machine
/// may take a minute more.
const DEADLINE: Duration = Duration::from_mins(4);
const LVMD_CONFIG: &str = "\
device-classes:
- {name: ssd, volume-group: ssd, default: true, spare-gb: 0}
- {name: thin, volume-group: pool, type: thin, spare-gb: 0, thin-pool: {name: pool0, overprovision-ratio: 10}}
";
/// The volume that fills a node.
const FILLER: &str = "filler";
/// StorageClass of the claims that show that the provisioner has seen all earlier ones.
const BARRIER_CLASS: &str = "barrier";
/// Interval at which the API server is asked whether an admission policy is in force, which it does not report.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The programs under test, whose logs are kept.
const PROGRAMS: [&str; 4] = [CONTROLLER, "csi-provisioner", "csi-resizer", "csi-snapshotter"];

/// The outcomes of the scenarios by name.
pub(super) type Outcomes = BTreeMap<String, Value>;

/// The result of a run.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) outcomes: Outcomes,
    /// The scenarios that did not come to their end, with the step and the state then.
    pub(super) failures: Vec<String>,
}

/// Runs scenarios at the same time and then those that need the program under test for themselves, in a new cluster.
/// The logs of the programs are copied to a directory.
pub(super) fn run(tested: Tested, parallel: &[Scenario], alone: &[Scenario], logs: &Path) -> Result<Report> {
    let shared = TestCluster::up("parity", &tested.spec()?)?;
    let done = run_in(&shared.cluster, tested, parallel, alone).with_state(|| last_lines(&shared.cluster));
    for name in PROGRAMS {
        // A sidecar may not run
        drop(fs::copy(shared.cluster.log(name), logs.join(format!("{}-{name}.log", tested.name()))));
    }
    shared.down()?;
    done
}

fn run_in(cluster: &Cluster, tested: Tested, parallel: &[Scenario], alone: &[Scenario]) -> Result<Report> {
    // kube-scheduler selects nodes regardless of free space, so that the provisioner meets full ones
    let patch = json!({"spec": {"storageCapacity": false}}).to_string();
    cluster.kubectl_ok(["patch", "csidriver", "topolvm.io", "-p", &patch])?;
    let nodes = FakeNodes::new(cluster, &tested.spec()?)?;
    let own = parallel.iter().chain(alone).flat_map(|scenario| scenario.nodes.iter().copied());
    let lvms = [ALPHA, BETA].map(|name| ScenarioNode { name, free: 64 << 30, filled: 0 }).into_iter().chain(own);
    let lvms: BTreeMap<_, _> = lvms.map(|node| (node.name, fake_lvm(node))).collect();
    thread::scope(|scope| {
        let added: Vec<_> = lvms.iter().map(|(name, lvm)| scope.spawn(|| nodes.add(name, lvm, LVMD_CONFIG))).collect();
        added.into_iter().try_for_each(|node| node.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let client = runtime.block_on(cluster.client())?;
    let observed = Observed::default();
    for kind in Kind::WATCHED {
        runtime.spawn(observed.clone().watch(client.clone(), kind));
    }
    tested.start(cluster)?;
    let run =
        Run { cluster, nodes: &nodes, lvms: &lvms, runtime: &runtime, client, observed, tested: Mutex::new(tested) };
    let done = run.run_all(parallel, alone);
    nodes.stop()?;
    done
}

fn fake_lvm(node: ScenarioNode) -> FakeLvm {
    let lvm = FakeLvm::new().with_group("ssd", node.free + node.filled).with_group("pool", 32 << 30);
    lvm.add_volume("pool", "pool0", FakeVolume::thin_pool(16 << 30));
    if node.filled > 0 {
        lvm.add_volume("ssd", FILLER, FakeVolume::thick(node.filled));
    }
    lvm
}

/// Returns the ends of the logs of the programs under test.
fn last_lines(cluster: &Cluster) -> String {
    let mut text = String::new();
    for name in PROGRAMS {
        let log = fs::read_to_string(cluster.log(name)).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(20).collect();
        // Writing to text cannot fail
        let _written = writeln!(text, "{name}, last line first:\n{}", last.join("\n"));
    }
    text
}

/// A run of scenarios.
struct Run<'a> {
    cluster: &'a Cluster,
    nodes: &'a FakeNodes<'a>,
    lvms: &'a BTreeMap<&'static str, FakeLvm>,
    runtime: &'a Runtime,
    client: Client,
    observed: Observed,
    /// The one that runs.
    tested: Mutex<Tested>,
}

impl Run<'_> {
    /// Waits until all agents have published their free space: no volume is created on a node before that.
    fn wait_published(&self) -> Result<()> {
        let annotation = "/metadata/annotations/capacity.topolvm.io~100default";
        let has = |state: &State, node: &str| state.get(Kind::Node, "", node)?.pointer(annotation).map(drop);
        let all = |state: &State| self.lvms.keys().try_for_each(|node| has(state, node));
        self.observed.wait(Instant::now() + DEADLINE, all).context("not all agents have published their free space")
    }

    fn run_all(&self, parallel: &[Scenario], alone: &[Scenario]) -> Result<Report> {
        self.wait_published()?;
        let class = merge(immediate_on(ALPHA), json!({"allowVolumeExpansion": true}));
        self.create(BARRIER_CLASS, Kind::Class, scenario::class(BARRIER_CLASS, class))?;
        let mut results = thread::scope(|scope| {
            let threads: Vec<_> = parallel.iter().map(|it| (it, scope.spawn(|| self.run_scenario(it)))).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<Value>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            };
            threads.into_iter().map(|(scenario, thread)| (scenario, join(thread))).collect::<Vec<_>>()
        });
        results.extend(alone.iter().map(|scenario| (scenario, self.run_scenario(scenario))));
        let (mut outcomes, mut failures) = (Outcomes::new(), Vec::new());
        for (scenario, result) in results {
            match result {
                Ok(records) => drop(outcomes.insert(scenario.name.to_owned(), self.complete(scenario, records))),
                Err(error) => failures.push(format!("{}: {error:#}\n{}", scenario.name, self.describe(scenario))),
            }
        }
        Ok(Report { outcomes, failures })
    }

    /// Adds to the records of a scenario what is known at the end of the run: all its Events, and its objects.
    fn complete(&self, scenario: &Scenario, records: Value) -> Value {
        self.observed.read(|state| {
            json!({
                "records": records,
                "events": outcome::events(state, scenario),
                "volumes": outcome::volumes_ever_created(state, scenario),
                "end": outcome::objects(state, scenario),
            })
        })
    }

    /// Runs the steps of a scenario. Returns its records by the number of their step.
    fn run_scenario(&self, scenario: &Scenario) -> Result<Value> {
        let deadline = Instant::now() + DEADLINE;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": scenario.name}});
        self.create(scenario.name, Kind::Namespace, namespace)?;
        let mut records = serde_json::Map::new();
        for (number, step) in scenario.steps.iter().enumerate() {
            match step {
                Step::Record => {
                    let objects = self.observed.read(|state| outcome::objects(state, scenario));
                    records.insert(format!("step {number}"), objects);
                    Ok(())
                }
                Step::Barrier => self.pass_barrier(scenario, &format!("{BARRIER}-{number}"), deadline),
                _ => self.run_step(scenario, step, deadline),
            }
            .with_context(|| format!("step {number}, {step:?}"))?;
        }
        Ok(Value::Object(records))
    }

    fn run_step(&self, scenario: &Scenario, step: &Step, deadline: Instant) -> Result<()> {
        match step {
            Step::Create(target, object) => {
                let (kind, name) = self.resolve(scenario, target, deadline)?;
                let mut object = object.clone();
                if let Some(metadata) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
                    metadata.insert("name".to_owned(), name.into());
                }
                if object.to_string().contains(VOLUME) {
                    object = substitute(&object, VOLUME, &self.volume_name(scenario, "a", deadline)?);
                }
                if object.to_string().contains(VOLUME_ID) {
                    object = substitute(&object, VOLUME_ID, &self.volume_id(scenario, deadline)?);
                }
                if object.to_string().contains(HANDLE) {
                    object = substitute(&object, HANDLE, &self.snapshot_handle(scenario, deadline)?);
                }
                if object.to_string().contains(GROUP_HANDLE) {
                    object = self.with_group_handles(scenario, &object, deadline)?;
                }
                self.create(scenario.name, kind, object)
            }
            Step::Patch(target, patch) => self.patch(scenario, target, patch, "", deadline),
            Step::PatchStatus(target, patch) => self.patch(scenario, target, patch, "status", deadline),
            Step::Delete(target) => {
                let (kind, name) = self.resolve(scenario, target, deadline)?;
                // No kubelet terminates pods
                let parameters =
                    DeleteParams { grace_period_seconds: (kind == Kind::Pod).then_some(0), ..Default::default() };
                self.runtime.block_on(self.api(scenario.name, kind).delete(&name, &parameters)).context("delete")?;
                let is_observed = |state: &State| {
                    state
                        .get(kind, scenario.name, &name)
                        .is_none_or(|it| it.pointer("/metadata/deletionTimestamp").is_some())
                };
                self.wait_observed(kind, deadline, is_observed)
            }
            Step::Wait(target, until) => {
                let (kind, name) = self.resolve(scenario, target, deadline)?;
                let until = match until {
                    Until::Field(pointer, value) => Until::Field(pointer, substitute(value, SELF, scenario.name)),
                    other => other.clone(),
                };
                let holds = |state: &State| holds(state, scenario.name, kind, &name, &until).then_some(());
                self.observed.wait(deadline, holds).context("this did not happen in time")
            }
            Step::Barrier | Step::Record => bail!("this is no action"),
            Step::WaitRefused(kind, object) => loop {
                ensure!(Instant::now() < deadline, "the API server does not refuse it");
                let object = serde_json::from_value(substitute(object, SELF, scenario.name))?;
                let parameters = PostParams { dry_run: true, ..PostParams::default() };
                if self.runtime.block_on(self.api(scenario.name, *kind).create(&parameters, &object)).is_err() {
                    break Ok(());
                }
                thread::sleep(POLL_INTERVAL);
            },
            Step::StopAgent(node) => self.nodes.stop_agent(node),
            Step::StartAgent(node) => self.nodes.start_agent(node),
            Step::BreakLvm(node, command) => {
                self.lvm(node)?.fail_always(command, Fault::says("device-mapper: create ioctl failed"));
                Ok(())
            }
            Step::RepairLvm(node) => {
                self.lvm(node)?.clear_faults();
                Ok(())
            }
            Step::FreeSpace(node) => {
                self.lvm(node)?.remove_volume("ssd", FILLER);
                Ok(())
            }
            Step::Kill => self.tested().kill(self.cluster),
            Step::Restart => self.tested().restart(self.cluster),
            Step::HandOver => {
                let mut tested = self.tested();
                tested.hand_over(self.cluster)?;
                *tested = tested.other();
                Ok(())
            }
        }
    }

    /// Has a claim provisioned, and expanded where resizers are tested, so that the program under test has seen all
    /// that was created before it.
    fn pass_barrier(&self, scenario: &Scenario, name: &str, deadline: Instant) -> Result<()> {
        // The kubelet has nothing to do for a device
        let spec = json!({"spec": {"storageClassName": BARRIER_CLASS, "volumeMode": "Block"}});
        let object = scenario::claim(name, [spec]);
        self.create(scenario.name, Kind::Claim, object)?;
        let is_bound = |state: &State| holds(state, scenario.name, Kind::Claim, name, &Until::Bound).then_some(());
        self.observed.wait(deadline, is_bound).context("the claim of the barrier is not bound")?;
        if self.tested().work != Work::Resizer {
            return Ok(());
        }
        self.patch(scenario, &Target::Named(Kind::Claim, name.to_owned()), &size("128Mi"), "", deadline)?;
        let until = Until::Field("/status/capacity/storage", "128Mi".into());
        let is_expanded = |state: &State| holds(state, scenario.name, Kind::Claim, name, &until).then_some(());
        self.observed.wait(deadline, is_expanded).context("the claim of the barrier is not expanded")
    }

    fn patch(&self, scenario: &Scenario, target: &Target, patch: &Value, part: &str, deadline: Instant) -> Result<()> {
        let (kind, name) = self.resolve(scenario, target, deadline)?;
        let (api, parameters) = (self.api(scenario.name, kind), PatchParams::default());
        let patch = Patch::Merge(substitute(patch, SELF, scenario.name));
        let patched = if part.is_empty() {
            self.runtime.block_on(api.patch(&name, &parameters, &patch))
        } else {
            self.runtime.block_on(api.patch_status(&name, &parameters, &patch))
        };
        let patched = version(&serde_json::to_value(patched.context("patch")?)?);
        let is_observed =
            |state: &State| state.get(kind, scenario.name, &name).is_none_or(|object| version(object) >= patched);
        self.wait_observed(kind, deadline, is_observed)
    }

    fn create(&self, namespace: &str, kind: Kind, object: Value) -> Result<()> {
        let object: DynamicObject =
            serde_json::from_value(substitute(&object, SELF, namespace)).context("not an object")?;
        let created = self.runtime.block_on(self.api(namespace, kind).create(&PostParams::default(), &object));
        let uid = created.context("create")?.metadata.uid.context("no UID")?;
        self.wait_observed(kind, Instant::now() + DEADLINE, |state| state.uids.contains_key(&uid))
    }

    /// Waits until a change of an object has been observed, so that later steps do not see the state before it.
    fn wait_observed(&self, kind: Kind, deadline: Instant, is_observed: impl Fn(&State) -> bool) -> Result<()> {
        if !Kind::WATCHED.contains(&kind) {
            return Ok(());
        }
        self.observed.wait(deadline, |state| is_observed(state).then_some(())).context("the change was not observed")
    }

    /// Returns the kind and name of an object. For a volume of a claim it waits until the claim was observed.
    fn resolve(&self, scenario: &Scenario, target: &Target, deadline: Instant) -> Result<(Kind, String)> {
        match target {
            Target::Named(kind, name) => Ok((*kind, name.replace(SELF, scenario.name))),
            Target::VolumeOf(claim) => Ok((Kind::Volume, self.volume_name(scenario, claim, deadline)?)),
            Target::LogicalVolumeOf(claim) => Ok((Kind::LogicalVolume, self.volume_name(scenario, claim, deadline)?)),
            Target::ContentOf(snapshot) => {
                let uid = self.uid(scenario, Kind::Snapshot, snapshot, deadline)?;
                Ok((Kind::SnapshotContent, format!("snapcontent-{uid}")))
            }
            Target::SnapshotVolumeOf(snapshot) => {
                let uid = self.uid(scenario, Kind::Snapshot, snapshot, deadline)?;
                Ok((Kind::LogicalVolume, format!("snapshot-{uid}")))
            }
            Target::GroupContentOf(group) => {
                let uid = self.uid(scenario, Kind::GroupSnapshot, group, deadline)?;
                Ok((Kind::GroupSnapshotContent, format!("groupsnapcontent-{uid}")))
            }
            Target::GroupVolumeOf(group, number) => {
                let uid = self.uid(scenario, Kind::GroupSnapshot, group, deadline)?;
                Ok((Kind::LogicalVolume, format!("groupsnapshot-{uid}-{number}")))
            }
            Target::MemberOf(claim) => {
                let find = |state: &State| members(state, scenario.name).remove(*claim);
                let member = self.observed.wait(deadline, find);
                Ok((Kind::Snapshot, member.with_context(|| format!("no group has a snapshot of {claim}"))?))
            }
        }
    }

    fn volume_name(&self, scenario: &Scenario, claim: &str, deadline: Instant) -> Result<String> {
        self.uid(scenario, Kind::Claim, claim, deadline).map(|uid| format!("pvc-{uid}"))
    }

    /// Returns the UID of an object of the scenario that exists or existed, when it was observed.
    fn uid(&self, scenario: &Scenario, kind: Kind, name: &str, deadline: Instant) -> Result<String> {
        let find = |state: &State| {
            let is_it = |uid: &&str| state.uids.get(*uid).is_some_and(|key| key.name == name);
            state.uids_in(kind, scenario.name).into_iter().find(is_it).map(str::to_owned)
        };
        self.observed.wait(deadline, find).with_context(|| format!("no {kind:?} {name} was observed"))
    }

    /// Returns the id of the volume of the LogicalVolume with the name of the scenario, when it has one.
    fn volume_id(&self, scenario: &Scenario, deadline: Instant) -> Result<String> {
        let find = |state: &State| {
            let object = state.get(Kind::LogicalVolume, "", scenario.name)?;
            object.pointer("/status/volumeID")?.as_str().map(str::to_owned)
        };
        self.observed.wait(deadline, find).with_context(|| format!("LogicalVolume {} has no volume", scenario.name))
    }

    /// Returns the id of the snapshot of the VolumeSnapshot `s`, when it has one.
    fn snapshot_handle(&self, scenario: &Scenario, deadline: Instant) -> Result<String> {
        let content = format!("snapcontent-{}", self.uid(scenario, Kind::Snapshot, "s", deadline)?);
        let find = |state: &State| {
            let content = state.get(Kind::SnapshotContent, "", &content)?;
            content.pointer("/status/snapshotHandle")?.as_str().map(str::to_owned)
        };
        self.observed.wait(deadline, find).with_context(|| format!("{content} has no snapshot"))
    }

    /// Replaces the ids of the group `g` and of its snapshots in an object, when the group has them.
    fn with_group_handles(&self, scenario: &Scenario, object: &Value, deadline: Instant) -> Result<Value> {
        let content = format!("groupsnapcontent-{}", self.uid(scenario, Kind::GroupSnapshot, "g", deadline)?);
        let find = |state: &State| {
            let status = state.get(Kind::GroupSnapshotContent, "", &content)?.pointer("/status")?;
            let group = status.pointer("/volumeGroupSnapshotHandle")?.as_str()?.to_owned();
            let members = status.pointer("/volumeSnapshotInfoList")?.as_array()?.iter();
            let handle = |member: &Value| Some(member.pointer("/snapshotHandle")?.as_str()?.to_owned());
            Some((group, members.map(handle).collect::<Option<Vec<_>>>()?))
        };
        let found = self.observed.wait(deadline, find);
        let (group, members) = found.with_context(|| format!("{content} has no snapshots"))?;
        let object = substitute(object, GROUP_HANDLE, &group);
        let replace = |object, (placeholder, member): (&&str, &String)| substitute(&object, placeholder, member);
        Ok(MEMBER_HANDLES.iter().zip(&members).fold(object, replace))
    }

    fn tested(&self) -> MutexGuard<'_, Tested> {
        self.tested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lvm(&self, node: &str) -> Result<&FakeLvm> {
        self.lvms.get(node).with_context(|| format!("the scenario has no node {node}"))
    }

    fn api(&self, namespace: &str, kind: Kind) -> Api<DynamicObject> {
        let (client, resource) = (self.client.clone(), kind.resource());
        if kind.is_namespaced() {
            Api::namespaced_with(client, namespace, &resource)
        } else {
            Api::all_with(client, &resource)
        }
    }

    /// Returns the objects and Events of a scenario that failed.
    fn describe(&self, scenario: &Scenario) -> String {
        let events = |state: &State| {
            let described = state.events_in(scenario.name).map(|event| {
                let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
                let about = [text("/involvedObject/name"), text("/source/component"), text("/reportingComponent")];
                format!("  {} {}: {}", about.join(" "), text("/reason"), text("/message"))
            });
            described.collect::<Vec<_>>().join("\n")
        };
        self.observed.read(|state| format!("  {}\n{}", outcome::objects(state, scenario), events(state)))
    }
}

/// Replaces a placeholder in all texts of an object.
fn substitute(object: &Value, placeholder: &str, by: &str) -> Value {
    match object {
        Value::String(text) => text.replace(placeholder, by).into(),
        Value::Array(values) => values.iter().map(|value| substitute(value, placeholder, by)).collect(),
        Value::Object(members) => {
            let replaced =
                |(key, value): (&String, &Value)| (key.replace(placeholder, by), substitute(value, placeholder, by));
            Value::Object(members.iter().map(replaced).collect())
        }
        other => other.clone(),
    }
}

/// Returns the version of an object; later ones are greater.
fn version(object: &Value) -> u64 {
    let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
    version.and_then(|version| version.parse().ok()).unwrap_or_default()
}
