//! Creates, finds and deletes groups of snapshots that are taken at one moment.
//!
//! Each member is a snapshot of its own, whose name follows from the id of the group and its number. The node agent
//! takes all of them in one step once it has seen all objects.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;
use topolvm_api::{CREATED_BY, LogicalVolume, MAX_SNAPSHOT_GROUP, SnapshotGroup};

use super::copy::source_not_found;
use super::delete::exact_version;
use super::objects::api_error;
use super::{ContentSource, Placement, SnapshotRequest, Volume, VolumeError, VolumeKind, Volumes};

/// A request for a group of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotGroupRequest {
    /// CSI id of the group, which is its name.
    pub(crate) id: String,
    /// Ids of the volumes, sorted: the same volumes in another order are the same request.
    pub(crate) sources: Vec<String>,
}

impl Volumes {
    /// Takes the snapshots of a group, or finds that they have been taken: the same request any number of times has the
    /// same result.
    pub(crate) async fn create_snapshot_group(
        &self,
        request: SnapshotGroupRequest,
        deadline: Instant,
    ) -> Result<Vec<Volume>, VolumeError> {
        let SnapshotGroupRequest { id, sources } = request;
        let group = SnapshotGroup { id, size: sources.len() };
        self.check_group(&group, &sources).await?;
        let creations = sources.into_iter().zip(group.member_names()).map(|(source, name)| {
            let group = Some(group.clone());
            self.create_snapshot(SnapshotRequest { name, source, placement: Placement::Anywhere, group }, deadline)
        });
        let creations: Vec<_> = creations.collect();
        let members = try_join_all(creations).await?;
        match members.iter().find(|member| !member.is_taken_together) {
            None => Ok(members),
            Some(member) => Err(VolumeError::NotTakenTogether { node: member.node.clone() }),
        }
    }

    /// Checks before the first object is created that all sources are on one node, and that no member is another
    /// snapshot. A source that is gone counts only if its snapshot has not been taken before.
    async fn check_group(&self, group: &SnapshotGroup, sources: &[String]) -> Result<(), VolumeError> {
        let mut nodes = BTreeMap::<String, Vec<&str>>::new();
        for (source, name) in sources.iter().zip(group.member_names()) {
            let content = ContentSource::Volume(source.clone());
            let member = self.objects.read(&name).await?.filter(|member| !member.is_deleting());
            if let Some(difference) = member.as_ref().and_then(|member| self.find_other(member, group, &content)) {
                return Err(VolumeError::AlreadyExists { name, difference: difference.to_owned() });
            }
            match self.find_source(&content).await? {
                Some(object) => nodes.entry(object.spec.node_name).or_default().push(source),
                None if member.is_none() => return Err(source_not_found(&content)),
                None => {}
            }
        }
        if nodes.len() < 2 {
            return Ok(());
        }
        let on_node = |(node, volumes): (String, Vec<&str>)| format!("{} on node {node}", volumes.join(", "));
        Err(VolumeError::GroupOnSeveralNodes { volumes: nodes.into_iter().map(on_node).collect::<Vec<_>>().join("; ") })
    }

    /// Returns the property by which an object is another one than this member of the group.
    fn find_other(
        &self,
        object: &LogicalVolume,
        group: &SnapshotGroup,
        source: &ContentSource,
    ) -> Option<&'static str> {
        let flavor = self.objects.flavor;
        if SnapshotGroup::of(flavor, object).as_ref() != Some(group) {
            Some("in a group of snapshots of another number of volumes, or in none")
        } else if ContentSource::from_annotations(flavor, object).as_ref() != Some(source) {
            Some("as a snapshot of another volume")
        } else {
            None
        }
    }

    /// Reads a group of which all snapshots exist. `listed` are the ids that the caller knows; none is any.
    pub(crate) async fn get_snapshot_group(&self, id: &str, listed: &[String]) -> Result<Vec<Volume>, VolumeError> {
        let members = self.find_members(id).await?;
        let not_found = || VolumeError::GroupNotFound { id: id.to_owned() };
        let size =
            members.first().and_then(|member| SnapshotGroup::of(self.objects.flavor, member)).map(|group| group.size);
        let live = members.iter().filter(|member| !member.is_deleting());
        let volumes: Vec<_> = live
            .filter_map(|member| Volume::from_object(self.objects.flavor, member, &self.objects.informer))
            .collect();
        if size != Some(volumes.len()) {
            return Err(not_found());
        }
        check_listed(id, &members, listed)?;
        match listed.iter().find(|listed| !volumes.iter().any(|volume| volume.id == **listed)) {
            Some(other) => Err(VolumeError::NotInGroup { snapshot: other.clone(), id: id.to_owned() }),
            None => Ok(volumes),
        }
    }

    /// Deletes the snapshots of a group and waits until they are gone. A group that does not exist is gone.
    pub(crate) async fn delete_snapshot_group(
        &self,
        id: &str,
        listed: &[String],
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let members = self.find_members(id).await?;
        check_listed(id, &members, listed)?;
        for snapshot in listed.iter().filter(|snapshot| !members.iter().any(|member| member.lv_name() == **snapshot)) {
            if self.objects.find(VolumeKind::Snapshot, snapshot).await?.is_some() {
                return Err(VolumeError::NotInGroup { snapshot: snapshot.clone(), id: id.to_owned() });
            }
        }
        let deletions: Vec<_> = members.iter().map(|member| self.delete_member(member, deadline)).collect();
        try_join_all(deletions).await.map(drop)
    }

    /// Deletes a member and waits until it is gone. The VolumeSnapshotContent that refers to it does not keep it.
    async fn delete_member(&self, member: &LogicalVolume, deadline: Instant) -> Result<(), VolumeError> {
        let (name, uid) = (member.name(), &member.metadata.uid);
        let annotations = json!({self.objects.flavor.snapshot_group_deleted(): "true"});
        let patch = json!({"metadata": {"uid": uid, "annotations": annotations}});
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        match self.objects.api().patch(name, &params, &Patch::Merge(&patch)).await {
            Ok(_) => {}
            // Gone, or another object by now
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(api_error("mark the deletion of the group of", name)(error)),
        }
        self.objects.delete_object_and_wait(member, deadline).await
    }

    /// Deletes what an attempt that failed has left of a group, without waiting.
    pub(crate) async fn discard_snapshot_group(&self, id: &str) -> Result<(), VolumeError> {
        for member in self.find_members(id).await? {
            // One that has changed meanwhile is found by the next attempt
            self.objects.delete_object(member.name(), exact_version(&member)).await?;
        }
        Ok(())
    }

    /// Reads the members of a group from the API server, in their order.
    async fn find_members(&self, id: &str) -> Result<Vec<LogicalVolume>, VolumeError> {
        // Other names are no names of objects
        if !id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)) {
            return Ok(Vec::new());
        }
        let group_of =
            |object: &LogicalVolume| SnapshotGroup::of(self.objects.flavor, object).filter(|group| group.id == id);
        // Any of them may have been deleted by hand, and the first one with the number of all
        let largest = SnapshotGroup { id: id.to_owned(), size: MAX_SNAPSHOT_GROUP };
        let first = self.objects.read(&largest.member_name(0)).await?;
        let group = first.as_ref().and_then(group_of).unwrap_or(largest);
        let others: Vec<_> = group.member_names().skip(1).collect();
        let reads: Vec<_> = others.iter().map(|name| self.objects.read(name)).collect();
        let others = try_join_all(reads).await?;
        let found = std::iter::once(first).chain(others).flatten();
        Ok(found.filter(|object| group_of(object).is_some()).collect())
    }
}

/// Checks that a list of ids, unless it is empty, has all snapshots of the group.
fn check_listed(id: &str, members: &[LogicalVolume], listed: &[String]) -> Result<(), VolumeError> {
    let is_missing = |snapshot: &&str| !listed.is_empty() && !listed.iter().any(|listed| listed == snapshot);
    match members.iter().filter_map(LogicalVolume::volume_id).find(is_missing) {
        Some(snapshot) => Err(VolumeError::MissingOfGroup { snapshot: snapshot.to_owned(), id: id.to_owned() }),
        None => Ok(()),
    }
}
