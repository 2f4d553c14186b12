//! Handles LVs without an object: collects the proof, and reports them, puts them into quarantine, gives them back or
//! removes them.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt as _};
use linux_mount::Mounter;
use lvmd_client::{LvmdClient, LvmdError, to_wire};
use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_api::{ApiFlavor, LogicalVolume, NodeOrphans, OrphanedVolume, lvm_tags};
use topolvm_kube::api_server::ApiError;
use topolvm_kube::{ClusterIdentity, EventRecorder, node_reference};
use topolvm_proto::lvmd::AdoptLvRequest;
use topolvm_runtime::error_chain;

use crate::args::{OrphanPolicy, OrphanSettings};
use crate::candidate::Candidate;
use crate::decision::{Step, choose_step};
use crate::events::Events;
use crate::kept_time::to_record;
use crate::listing::{Listing, LvsWithoutObject};
use crate::proof::{Blocker, ClusterFacts, Counts, find_blocker};
use crate::server::{ObjectState, Server, remembers_until};
use crate::state::OrphanState;

/// Longest time between two checks of the same LVs.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Age from which an object counts as remembered: by then all objects of the same second exist.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);
/// Most names of LVs in an Event.
const MOST_NAMED: usize = 5;

/// An LV without an object, and what is known of it.
struct Orphan<'a> {
    candidate: &'a Candidate,
    blocker: Option<Blocker>,
}

/// The node whose LVs are handled, and what the handler queries and changes there.
#[derive(Debug)]
pub struct NodeAccess<M> {
    /// API group of the objects.
    pub flavor: ApiFlavor,
    /// Name of the Node.
    pub node: String,
    /// Identity of the cluster.
    pub cluster: ClusterIdentity,
    /// Recorder of the Events of the agent.
    pub events: EventRecorder,
    /// The lvmd that has the LVs.
    pub lvmd: LvmdClient,
    /// Finds uses of devices, so that no LV is touched whose device is in use; without one no device counts as in use.
    pub mounter: M,
    /// The clock.
    pub now: fn() -> Timestamp,
}

/// Handles LVs without an object.
pub struct OrphanHandler<M> {
    settings: OrphanSettings,
    flavor: ApiFlavor,
    node: String,
    lvmd: LvmdClient,
    cluster: ClusterIdentity,
    /// The API server, for questions whose answers are proofs.
    server: Server,
    events: Events,
    mounter: M,
    now: fn() -> Timestamp,
    state: Mutex<OrphanState>,
}

impl<M> fmt::Debug for OrphanHandler<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrphanHandler")
            .field("settings", &self.settings)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<M: Mounter> OrphanHandler<M> {
    /// Makes the handler of the LVs of a node.
    pub fn new(settings: OrphanSettings, client: Client, access: NodeAccess<M>) -> Self {
        let NodeAccess { flavor, node, cluster, events, lvmd, mounter, now } = access;
        Self {
            server: Server::new(flavor, &node, cluster.clone(), client),
            settings,
            flavor,
            node,
            lvmd,
            cluster,
            events: Events(events),
            mounter,
            now,
            state: Mutex::default(),
        }
    }

    /// Checks the LVs without an object that a comparison has found, and takes the due steps. Whatever fails is tried
    /// again after the next comparison.
    pub async fn check(&self, found: LvsWithoutObject) {
        let listing = Listing::of(self.flavor, found);
        let names: BTreeSet<_> = listing.candidates.keys().cloned().collect();
        if self.must_check(&names)
            && let Err(error) = self.check_orphans(&listing).await
        {
            tracing::warn!(error = error_chain(&error), "cannot check logical volumes without a LogicalVolume");
            return;
        }
        if self.settings.policy != OrphanPolicy::Report
            && let Err(error) = self.remember_volumes(&listing).await
        {
            tracing::warn!(error = error_chain(&error), "cannot store the creation time of the newest LogicalVolume");
        }
    }

    /// Returns the time after which the LVs must be listed again to check them; `None` if they are only reported.
    pub fn next_check(&self) -> Option<Duration> {
        (self.settings.policy != OrphanPolicy::Report).then(|| self.check_interval())
    }

    /// Returns the time between two checks of the same LVs.
    fn check_interval(&self) -> Duration {
        CHECK_INTERVAL.min(self.settings.grace_period)
    }

    /// Returns whether a check of the LVs is due: the names have changed, or the interval has passed.
    fn must_check(&self, names: &BTreeSet<String>) -> bool {
        let interval = self.check_interval();
        match &self.state.lock().checked {
            Some((before, at)) if before == names => !names.is_empty() && at.elapsed() >= interval,
            Some(_) | None => true,
        }
    }

    async fn check_orphans(&self, listing: &Listing) -> Result<(), ApiError> {
        let Some(node) = self.server.read_node().await? else { return Ok(()) };
        self.measure_kept_times(listing, &node);
        let orphans =
            if listing.candidates.is_empty() { Vec::new() } else { self.find_orphans(listing, &node).await? };
        let reports = self.handle_each(&node, &orphans).await;
        self.report(&node, &orphans, reports).await?;
        let names = listing.candidates.keys().cloned().collect();
        self.state.lock().checked = Some((names, Instant::now()));
        Ok(())
    }

    /// Measures for how long LVs are in quarantine.
    fn measure_kept_times(&self, listing: &Listing, node: &PartialObjectMeta<Node>) {
        let annotation = node.annotations().get(self.flavor.orphans()).map(String::as_str);
        // What cannot be read counts as nothing, so that they stay the longer
        let recorded = NodeOrphans::parse(annotation).unwrap_or_default();
        let quarantined = listing.candidates.values();
        let quarantined =
            quarantined.filter_map(|candidate| Some((candidate.lv.name.as_str(), candidate.quarantined_at?)));
        self.state.lock().kept_times.see(quarantined, &recorded, Instant::now());
    }

    /// Returns for how long agents have seen an LV in quarantine.
    fn kept_time(&self, candidate: &Candidate) -> Duration {
        let Some(at) = candidate.quarantined_at else { return Duration::ZERO };
        self.state.lock().kept_times.kept(&candidate.lv.name, at, Instant::now())
    }

    /// Returns whether something is to be done about an LV.
    fn is_due(&self, candidate: &Candidate) -> bool {
        self.settings.is_due(candidate, self.kept_time(candidate), (self.now)())
    }

    /// Finds the LVs without an object, each with its first blocker. An LV in quarantine whose object exists is
    /// restored.
    async fn find_orphans<'a>(
        &self,
        listing: &'a Listing,
        node: &PartialObjectMeta<Node>,
    ) -> Result<Vec<Orphan<'a>>, ApiError> {
        let counts = self.count(listing);
        // Of many at once nothing has to be known but that they are many
        let may_query = self.settings.policy != OrphanPolicy::Report && counts.orphans <= counts.limit();
        let mut found = Vec::new();
        for candidate in listing.candidates.values() {
            found.extend(self.find_facts(candidate, may_query).await?.map(|facts| (candidate, facts)));
        }
        if self.settings.policy == OrphanPolicy::Report {
            return Ok(found.into_iter().map(|(candidate, _)| Orphan { candidate, blocker: None }).collect());
        }
        let server = self.server.read_state(node).await?;
        let with_blocker = |(candidate, facts): (&'a Candidate, ClusterFacts)| Orphan {
            candidate,
            blocker: find_blocker(candidate, &server, &facts, counts),
        };
        Ok(found.into_iter().map(with_blocker).collect())
    }

    /// Collects the observations in the cluster about an LV, as far as `may_query` allows; `None` if the LV has its
    /// object.
    async fn find_facts(&self, candidate: &Candidate, may_query: bool) -> Result<Option<ClusterFacts>, ApiError> {
        let mut facts = ClusterFacts::default();
        if may_query || candidate.is_quarantined {
            facts.object = self.server.find_object(candidate).await?;
        }
        if let ObjectState::Exists(volume) = &facts.object
            && volume.spec.node_name == self.node
        {
            if candidate.is_quarantined {
                self.restore(candidate, volume).await;
            }
            return Ok(None);
        }
        if may_query {
            facts.persistent_volume = self.find_persistent_volume(candidate).await?;
            facts.is_in_use = self.is_in_use(candidate).await;
        }
        Ok(Some(facts))
    }

    /// Checks for the PersistentVolume of the object that an LV was created for, and returns its name. csi-provisioner
    /// gives it the name of the volume.
    async fn find_persistent_volume(&self, candidate: &Candidate) -> Result<Option<String>, ApiError> {
        let Some(name) = &candidate.object else { return Ok(None) };
        let exists = self.server.references.has_persistent_volume(name).await?;
        Ok(exists.then(|| name.clone()))
    }

    /// Counts the LVs that are without an object at once: those that are not in quarantine, or are to leave it.
    fn count(&self, listing: &Listing) -> Counts {
        let counts = |candidate: &&Candidate| !candidate.is_quarantined || self.is_due(candidate);
        Counts { volumes: listing.volumes, orphans: listing.candidates.values().filter(counts).count() }
    }

    /// Takes the due steps, and returns the state of each LV.
    async fn handle_each(&self, node: &PartialObjectMeta<Node>, orphans: &[Orphan<'_>]) -> Vec<OrphanedVolume> {
        let (now, instant) = ((self.now)(), Instant::now());
        let is_proven = |orphan: &&Orphan<'_>| orphan.blocker.is_none() && self.is_due(orphan.candidate);
        let proven: Vec<_> = orphans.iter().filter(is_proven).map(|orphan| orphan.candidate.lv.name.as_str()).collect();
        self.state.lock().observations.see(&proven, instant);
        let mut reports = Vec::new();
        for Orphan { candidate, blocker } in orphans {
            let waited = self.state.lock().observations.waited(&candidate.lv.name, instant);
            let kept = self.kept_time(candidate);
            let step = choose_step(&self.settings, candidate, blocker.as_ref(), waited, kept, now);
            let note = match step {
                Step::Leave(note) => Some(note),
                Step::Quarantine => self.quarantine(node, candidate).await,
                Step::Remove(at) => self.remove_quarantined(node, candidate, at).await,
            };
            reports.extend(note.map(|note| OrphanedVolume {
                lv: candidate.lv.name.clone(),
                logical_volume: candidate.object.clone().unwrap_or_default(),
                device_class: candidate.class.clone(),
                bytes: candidate.lv.size_bytes,
                quarantined_at: candidate.quarantined_at,
                kept_seconds: to_record(kept),
                note,
            }));
        }
        reports
    }

    /// Puts an LV into quarantine; returns why not. The next comparison finds it there.
    async fn quarantine(&self, node: &PartialObjectMeta<Node>, candidate: &Candidate) -> Option<String> {
        if let Some(blocker) = self.find_last_blocker(candidate).await {
            return Some(blocker);
        }
        let (lv, object) = (&candidate.lv.name, candidate.object.as_deref().unwrap_or_default());
        let at = (self.now)().as_second();
        if let Err(error) = self.lvmd.quarantine(lv, &candidate.class, at).await {
            return Some(log_failure(candidate, "cannot move the logical volume to quarantine", &error));
        }
        let message = format!(
            "LV {lv} of device class {} was moved to quarantine: LogicalVolume {object} does not exist; list, restore \
             or delete it with kubectl topolvm orphans",
            candidate.class
        );
        tracing::warn!(lv, object, message, "moved a logical volume to quarantine");
        self.events.volume_quarantined(&node_reference(node), &message).await;
        None
    }

    /// Removes an LV whose quarantine has ended; returns why not.
    async fn remove_quarantined(
        &self,
        node: &PartialObjectMeta<Node>,
        candidate: &Candidate,
        at: i64,
    ) -> Option<String> {
        if let Some(blocker) = self.find_last_blocker(candidate).await {
            return Some(blocker);
        }
        let (lv, object) = (&candidate.lv.name, candidate.object.as_deref().unwrap_or_default());
        if let Err(error) = self.lvmd.remove_quarantined(lv, &candidate.class, at).await {
            return Some(log_failure(candidate, "cannot remove the logical volume after its quarantine", &error));
        }
        let message = format!("LV {lv} was removed after its quarantine: LogicalVolume {object} does not exist");
        tracing::warn!(lv, object, message, "removed a logical volume after its quarantine");
        self.events.quarantine_ended(&node_reference(node), &message).await;
        None
    }

    /// Searches for an object of any name that refers to an LV that is about to be changed; returns a note for the
    /// report.
    async fn find_last_blocker(&self, candidate: &Candidate) -> Option<String> {
        match self.server.references.search(&candidate.uid).await {
            Ok(found) => found.map(|reference| format!("kept: {reference} still exists")),
            Err(error) => {
                tracing::warn!(
                    lv = candidate.lv.name,
                    error = error_chain(&error),
                    "cannot search for objects that refer to it"
                );
                Some("kept: objects that may refer to it cannot be listed".to_owned())
            }
        }
    }

    /// Restores an LV in quarantine to its object, which exists again.
    async fn restore(&self, candidate: &Candidate, volume: &LogicalVolume) {
        let Ok(size_bytes) = to_wire(candidate.lv.size_bytes) else { return };
        let request = AdoptLvRequest {
            name: candidate.lv.name.clone(),
            device_class: candidate.class.clone(),
            new_name: candidate.uid.clone(),
            size_bytes,
            tags: lvm_tags(self.flavor, volume, self.cluster.uid().await),
        };
        match self.lvmd.adopt(request).await {
            Ok(_) => {
                tracing::warn!(volume = volume.name(), lv = candidate.uid, "the object exists again; restored its LV");
            }
            Err(error) => {
                log_failure(candidate, "cannot restore the logical volume to its object", &error);
            }
        }
    }

    /// Returns whether a device node of an LV is in use; true if that is unknown.
    async fn is_in_use(&self, candidate: &Candidate) -> bool {
        let Some(number) = candidate.lv.number else { return false };
        self.mounter.find_device_uses(number, &candidate.lv.path).await.map_or(true, |uses| !uses.is_empty())
    }

    /// Writes the state of each LV to the Node, if that has changed, and reports new ones in an Event.
    async fn report(
        &self,
        node: &PartialObjectMeta<Node>,
        orphans: &[Orphan<'_>],
        reports: Vec<OrphanedVolume>,
    ) -> Result<(), ApiError> {
        let kept = |orphan: &&OrphanedVolume| orphan.quarantined_at.is_some();
        let new: Vec<_> = {
            let before = &self.state.lock().reported;
            reports.iter().filter(|orphan| !kept(orphan) && !before.contains(&orphan.lv)).cloned().collect()
        };
        if !new.is_empty() {
            self.events.volumes_orphaned(&node_reference(node), &describe(&new)).await;
        }
        self.state.lock().reported = orphans.iter().map(|orphan| orphan.candidate.lv.name.clone()).collect();
        let (key, annotation) = (self.flavor.orphans(), NodeOrphans::of(reports).to_annotation());
        if node.annotations().get(key) != annotation.as_ref() {
            self.server.annotate_node(key, annotation.as_deref()).await?;
        }
        Ok(())
    }

    /// Stores on the Node the creation time of the newest object with an existing LV: an API server that has this
    /// object remembers all objects until then. While an LV without an object is newer, the time stays unchanged: an
    /// object that the API server has forgotten must never count as older than this time.
    async fn remember_volumes(&self, listing: &Listing) -> Result<(), ApiError> {
        let settled = (self.now)().checked_sub(SETTLED).map_or(0, Timestamp::as_second);
        let newest = listing.made.iter().copied().filter(|made| *made <= settled).max();
        let Some(newest) = newest.filter(|_| !listing.is_incomplete) else { return Ok(()) };
        if self.state.lock().remembers_until.is_some_and(|until| until >= newest) {
            return Ok(());
        }
        let Some(node) = self.server.read_node().await? else { return Ok(()) };
        let until = remembers_until(self.flavor, &node);
        let is_forgotten = |candidate: &Candidate| {
            !candidate.is_quarantined
                && candidate.created.is_some_and(|created| until.is_none_or(|until| created > until))
        };
        if until.is_none_or(|until| until < newest) {
            if listing.candidates.values().any(is_forgotten) {
                return Ok(());
            }
            let time = Timestamp::from_second(newest).unwrap_or_default().to_string();
            self.server.annotate_node(self.flavor.volumes_until(), Some(&time)).await?;
        }
        self.state.lock().remembers_until = Some(newest);
        Ok(())
    }
}

/// Logs a failed action on an LV, and returns a note for the report.
fn log_failure(candidate: &Candidate, what: &'static str, error: &LvmdError) -> String {
    tracing::warn!(lv = candidate.lv.name, error = error_chain(error), "{what}; retrying");
    format!("{what}: {}", error.detail())
}

/// Describes LVs in an Event.
fn describe(new: &[OrphanedVolume]) -> String {
    let line =
        |orphan: &OrphanedVolume| format!("{} of device class {} ({})", orphan.lv, orphan.device_class, orphan.note);
    let listed = new.iter().take(MOST_NAMED).map(line).collect::<Vec<_>>().join(", ");
    let more = new.len().checked_sub(MOST_NAMED).filter(|more| *more > 0);
    let more = more.map_or_else(String::new, |more| format!(", and {more} more"));
    format!(
        "LVs exist whose LogicalVolumes do not exist; list, restore or delete them with kubectl topolvm orphans: \
         {listed}{more}"
    )
}
