//! Making a volume, or finding that it has been made: the same request any number of times has the same result.

use std::collections::BTreeMap;

use kube::api::{PostParams, Preconditions};
use tokio::time::Instant;
use tonic::Code;
use topolvm_api::{CREATED_BY, CREATED_BY_LABEL, LogicalVolume, LogicalVolumeSpec, format_bytes};

use super::delete::Deletion;
use super::error::ApiFailure;
use super::existing::{Existing, judge};
use super::{Error, Placement, Volume, Volumes, Wanted, failed};

/// How far the node agent is.
#[derive(Clone, Debug)]
enum Progress {
    Made(Volume),
    Failed(Failure),
    Vanished,
}

/// A failure that the node agent wrote.
#[derive(Clone, Debug)]
struct Failure {
    node: String,
    code: i32,
    message: String,
    is_copy: bool,
    /// The object as it was when it said so.
    as_seen: Preconditions,
}

impl Volumes {
    /// Makes the volume unless it exists, and waits until its node has made it. When the node cannot, the object is
    /// deleted and the error has the node's code and message.
    pub(crate) async fn ensure(&self, wanted: &Wanted, deadline: Instant) -> Result<Volume, Error> {
        let name = wanted.name.as_str();
        // Mostly there is none: then one POST is all that it takes
        let mut existing = match self.watch.get(name) {
            Some(_) => self.get(name).await?,
            None => None,
        };
        loop {
            let Some(volume) = existing else {
                if let Some(volume) = self.create(wanted, deadline).await? {
                    return self.await_made(volume, deadline).await;
                }
                existing = self.get(name).await?;
                continue;
            };
            let wanted = &self.for_existing(wanted, &volume).await?;
            match judge(self.flavor, &volume, wanted) {
                Existing::Adopt => return self.await_made(volume, deadline).await,
                Existing::Differs(difference) => {
                    return Err(Error::Differs { name: name.to_owned(), difference });
                }
                Existing::Useless => {
                    tracing::info!(name, node = volume.spec.node_name, "replacing an object without a volume");
                    let known = self.knows(&volume);
                    existing = match self.delete(name, exactly(&volume)).await? {
                        Deletion::Gone => None,
                        Deletion::Leaving => self.leave(&volume, known, deadline).await?,
                        Deletion::Changed => self.get(name).await?,
                    };
                }
                Existing::Leaving => existing = self.leave(&volume, false, deadline).await?,
            }
        }
    }

    /// What is wanted, as far as it matters for this object. One without a volume on another node than the first is asked for anew where
    /// the scheduler has chosen that first node: the pod may have been scheduled again since.
    async fn for_existing(&self, wanted: &Wanted, volume: &LogicalVolume) -> Result<Wanted, Error> {
        let is_elsewhere = wanted.placement.prefers_another(&volume.spec.node_name);
        let mut wanted = wanted.clone();
        if is_elsewhere && volume.volume_id().is_none() && !volume.is_deleting() {
            wanted.placement = self.narrowed(&wanted).await?;
        }
        Ok(wanted)
    }

    /// Waits until the object is gone, so that its name is free.
    async fn leave(
        &self,
        volume: &LogicalVolume,
        known: bool,
        deadline: Instant,
    ) -> Result<Option<LogicalVolume>, Error> {
        if self.await_gone(volume, known, deadline).await? {
            Ok(None)
        } else {
            Err(Error::StillLeaving {
                name: volume.metadata.name.clone().unwrap_or_default(),
                node: volume.spec.node_name.clone(),
            })
        }
    }

    /// Creates the object; `None` if there is one of that name.
    async fn create(&self, wanted: &Wanted, deadline: Instant) -> Result<Option<LogicalVolume>, Error> {
        let node = match self.place(wanted, deadline).await {
            Ok(node) => node,
            // The volume itself may be what fills the nodes: a repeated request must find it
            Err(error) => return self.get(&wanted.name).await?.map_or(Err(error), |_| Ok(None)),
        };
        let object = self.object(wanted, node);
        let params = PostParams { field_manager: Some(CREATED_BY.to_owned()), ..PostParams::default() };
        match self.api().create(&params, &object).await {
            Ok(volume) => {
                tracing::info!(
                    name = wanted.name,
                    node = volume.spec.node_name,
                    bytes = wanted.size.bytes,
                    device_class = wanted.device_class,
                    "created a LogicalVolume"
                );
                Ok(Some(volume))
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(None),
            Err(kube::Error::Api(status)) if status.is_invalid() => Err(Error::Unacceptable {
                name: wanted.name.clone(),
                source: ApiFailure::from(kube::Error::Api(status)),
            }),
            Err(error) => Err(failed("create", &wanted.name)(error)),
        }
    }

    /// The node for a new volume.
    async fn place(&self, wanted: &Wanted, deadline: Instant) -> Result<String, Error> {
        match &wanted.placement {
            // The scheduler has chosen. What is published is a moment old, and the node itself knows better whether it has room
            Placement::Nodes { first, others } if others.is_empty() => self.unless_leaving(first),
            Placement::Nodes { first, others } => {
                self.nodes_known(deadline).await?;
                match self.first_with_room(wanted, first, others)? {
                    node if node == *first => Ok(node),
                    elsewhere => match self.narrowed(wanted).await? {
                        Placement::Nodes { first, others } if others.is_empty() => self.unless_leaving(&first),
                        Placement::Nodes { .. } | Placement::Anywhere => Ok(elsewhere),
                    },
                }
            }
            Placement::Anywhere => {
                self.nodes_known(deadline).await?;
                self.roomiest(wanted)
            }
        }
    }

    /// Waits until all Nodes have been listed.
    async fn nodes_known(&self, deadline: Instant) -> Result<(), Error> {
        match tokio::time::timeout_at(deadline, self.nodes.synced()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::Stopping),
            Err(_elapsed) => Err(Error::NodesUnknown),
        }
    }

    fn unless_leaving(&self, node: &str) -> Result<String, Error> {
        let node = node.to_owned();
        if self.nodes.is_leaving_at(&node) { Err(Error::NodeLeaving { node }) } else { Ok(node) }
    }

    /// The first node in the caller's order that has room by what it publishes. external-provisioner sends all nodes in the same
    /// order whenever it asks for a claim that is bound immediately: were it always the first, a full one would keep the claim for ever.
    /// If none has room the first says why not.
    fn first_with_room(&self, wanted: &Wanted, first: &str, others: &[String]) -> Result<String, Error> {
        let has_room = |node: &&str| self.nodes.free_at(node, &wanted.device_class) >= wanted.size.bytes;
        let mut staying = std::iter::once(first)
            .chain(others.iter().map(String::as_str))
            .filter(|node| !self.nodes.is_leaving_at(node))
            .peekable();
        let preferred = staying.peek().copied();
        let node = staying.find(has_room).or(preferred);
        node.map(str::to_owned).ok_or_else(|| Error::NodeLeaving { node: first.to_owned() })
    }

    /// The node with the most free space, wherever it is.
    fn roomiest(&self, wanted: &Wanted) -> Result<String, Error> {
        let device_class = wanted.device_class.clone();
        match self.nodes.with_most_free(&device_class) {
            None => Err(Error::NoNode { device_class }),
            Some(node) if node.free < wanted.size.bytes => {
                Err(Error::NoRoom { device_class, wanted: wanted.size.bytes, node: node.name, free: node.free })
            }
            Some(node) => Ok(node.name),
        }
    }

    /// The object to create. It has the finalizer and the label from the start, so that the node agent can begin with
    /// the LV at once; TopoLVM's agent adds both itself, one after the other.
    fn object(&self, wanted: &Wanted, node_name: String) -> LogicalVolume {
        let mut object = LogicalVolume::new(
            self.flavor,
            LogicalVolumeSpec {
                name: wanted.name.clone(),
                node_name,
                size: format_bytes(wanted.size.bytes),
                device_class: wanted.device_class.clone(),
                lvcreate_option_class: wanted.lvcreate_option_class.clone(),
                source: wanted.origin.as_ref().map(|origin| origin.name.clone()).unwrap_or_default(),
                access_type: wanted.origin.as_ref().map_or("", |origin| origin.access.as_str()).to_owned(),
            },
        );
        object.metadata.annotations = wanted.origin.as_ref().map(|origin| {
            let id = (origin.id.annotation(self.flavor).to_owned(), origin.id.id().to_owned());
            let filesystem = origin.filesystem.clone().map(|value| (self.flavor.filesystem().to_owned(), value));
            std::iter::once(id).chain(filesystem).collect()
        });
        object.metadata.finalizers = Some(vec![self.flavor.logical_volume_finalizer().to_owned()]);
        object.metadata.labels = Some(BTreeMap::from([(CREATED_BY_LABEL.to_owned(), CREATED_BY.to_owned())]));
        object
    }

    /// Waits until the node agent has made the volume of this object.
    pub(super) async fn await_made(&self, mut volume: LogicalVolume, deadline: Instant) -> Result<Volume, Error> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let uid = volume.uid().to_owned();
        let mut outdated = None;
        loop {
            let progress = match self.progress(&volume) {
                Some(progress) => progress,
                None => self.await_progress(&volume, outdated.as_deref(), deadline).await?,
            };
            let failure = match progress {
                Progress::Made(made) => return Ok(made),
                Progress::Vanished => return Err(Error::Vanished(name)),
                Progress::Failed(failure) => failure,
            };
            // The caller may never come back after this answer, so that nothing may be left. Deleted as it was seen:
            // if the agent has tried again meanwhile, that counts.
            match self.delete(&name, failure.as_seen.clone()).await? {
                Deletion::Gone | Deletion::Leaving => return Err(failure.into()),
                Deletion::Changed => {
                    outdated = failure.as_seen.resource_version;
                    volume = match self.get(&name).await? {
                        Some(volume) if volume.uid() == uid => volume,
                        _ => return Err(Error::Vanished(name)),
                    };
                }
            }
        }
    }

    /// Waits for a change of the object that means something, except for the version that is known to be outdated.
    async fn await_progress(
        &self,
        volume: &LogicalVolume,
        outdated: Option<&str>,
        deadline: Instant,
    ) -> Result<Progress, Error> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let uid = volume.uid();
        // An absence counts only after a presence: a watch that lags has not seen the object yet
        let mut seen = false;
        let look = |watched: Option<&LogicalVolume>| match watched.filter(|watched| watched.uid() == uid) {
            Some(watched) => {
                seen = true;
                let version = watched.metadata.resource_version.as_deref();
                if outdated.is_some() && version == outdated { None } else { self.progress(watched) }
            }
            None => seen.then_some(Progress::Vanished),
        };
        if let Some(progress) = self.wait(&name, deadline, look).await? {
            return Ok(progress);
        }
        match self.get(&name).await?.filter(|volume| volume.uid() == uid) {
            None => Ok(Progress::Vanished),
            Some(now) => {
                self.progress(&now).ok_or_else(|| Error::Late { what: "made", name, node: now.spec.node_name })
            }
        }
    }

    /// What the object says about the volume, or `None` while the agent has not said anything.
    fn progress(&self, volume: &LogicalVolume) -> Option<Progress> {
        if volume.is_deleting() {
            return Some(Progress::Vanished);
        }
        match (volume.volume_id(), volume.current_bytes()) {
            (Some(_), Some(_)) => Volume::of(self.flavor, volume, &self.watch).map(Progress::Made),
            // The LV exists. TopoLVM's agent tells its size a moment later, and a failure is one of telling it: such an
            // object must never be deleted here
            (Some(_), None) => None,
            (None, _) => volume.failure().map(|(code, message)| {
                Progress::Failed(Failure {
                    node: volume.spec.node_name.clone(),
                    code,
                    message: message.to_owned(),
                    is_copy: !volume.spec.source.is_empty(),
                    as_seen: exactly(volume),
                })
            }),
        }
    }
}

/// Only this object, and only as it was seen.
pub(super) fn exactly(volume: &LogicalVolume) -> Preconditions {
    Preconditions { uid: volume.metadata.uid.clone(), resource_version: volume.metadata.resource_version.clone() }
}

impl From<Failure> for Error {
    fn from(Failure { node, code, message, is_copy, as_seen: _ }: Failure) -> Self {
        Self::NotMade { node, code: Code::from_i32(code), message, is_copy }
    }
}
