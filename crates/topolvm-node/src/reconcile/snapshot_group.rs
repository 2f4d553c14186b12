//! Creates the LVs of a group of snapshots together, so that all have the contents of one moment.
//!
//! The reconciliation of the first member makes one request to lvmd and writes the result to every object, to its own
//! last. All others wait for this. If the agent ends in between, the same request finds the existing LVs.

use lvmd_client::LvmdError;
use tonic::Code;
use topolvm_api::{AccessType, LogicalVolume, SnapshotGroup, taken_together_condition};
use topolvm_proto::lvmd::CreateLvSnapshotRequest;
use topolvm_runtime::grpc::GrpcCode as _;

use super::ReconcileError;
use super::creation::{Created, Creation};
use super::object_writer::with_deadline;
use super::source::Source;

/// A failure of a group, for the status of its members.
struct GroupFailure {
    code: Code,
    message: String,
}

impl Creation {
    /// Creates the LVs of all members if the object is the first one.
    pub(super) async fn create_group(
        &self,
        volume: &LogicalVolume,
        group: &SnapshotGroup,
    ) -> Result<Created, ReconcileError> {
        if volume.name() != group.member_name(0) {
            return Ok(Created::WithOthers);
        }
        let members = self.find_members(volume, group).await?;
        let requests = match self.build_requests(&members).await? {
            Ok(requests) => requests,
            Err(failure) => return self.fail_group(&members, &failure).await,
        };
        for member in &members {
            self.attempts.add(member);
        }
        match self.clients.lvmd.copy_together(requests).await {
            Ok(bytes) => {
                tracing::info!(group = group.id, snapshots = members.len(), "took snapshots of one moment");
                self.report_group(&members, &bytes).await
            }
            Err(error) if error.is_transient() => Err(ReconcileError::LvmdAway(error)),
            Err(error) => self.fail_group(&members, &GroupFailure::of_lvmd(&error)).await,
        }
    }

    /// Reads all members from the API server: the watch may not have shown them yet. The first one is `volume`.
    async fn find_members(
        &self,
        volume: &LogicalVolume,
        group: &SnapshotGroup,
    ) -> Result<Vec<LogicalVolume>, ReconcileError> {
        let mut members = vec![volume.clone()];
        for name in group.member_names().skip(1) {
            let found = with_deadline("look up a snapshot of the group", self.clients.api.get_opt(&name)).await?;
            let is_member = |found: &LogicalVolume| {
                SnapshotGroup::of(self.clients.flavor, found).as_ref() == Some(group)
                    && found.spec.node_name == self.clients.node
                    && !found.is_deleting()
            };
            members.push(found.filter(is_member).ok_or(ReconcileError::GroupIncomplete(name))?);
        }
        Ok(members)
    }

    /// Builds the requests for all members. Fails the group if one of them cannot be created.
    async fn build_requests(
        &self,
        members: &[LogicalVolume],
    ) -> Result<Result<Vec<CreateLvSnapshotRequest>, GroupFailure>, ReconcileError> {
        let mut requests = Vec::with_capacity(members.len());
        for member in members {
            if let Some((code, message)) = member.failure() {
                let message = format!("snapshot {} of the same group failed: {message}", member.name());
                return Ok(Err(GroupFailure { code: Code::from_i32(code), message }));
            }
            let source_volume = match self.find_source(member).await? {
                Ok(Some(Source { lv, access: AccessType::ReadOnly })) => lv,
                Ok(_) => return Ok(Err(GroupFailure::not_a_snapshot(member))),
                Err(refusal) => {
                    return Ok(Err(GroupFailure { code: refusal.code(), message: refusal.to_string() }));
                }
            };
            requests.push(CreateLvSnapshotRequest {
                name: member.uid().to_owned(),
                tags: self.clients.lvm_tags(member).await,
                device_class: member.spec.device_class.clone(),
                source_volume,
                access_type: AccessType::ReadOnly.as_str().to_owned(),
                // That of the source, which may have grown since the object was created
                size_bytes: 0,
            });
        }
        Ok(Ok(requests))
    }

    /// Writes the created volumes to the status of all members, and returns the result of the first one.
    async fn report_group(&self, members: &[LogicalVolume], bytes: &[u64]) -> Result<Created, ReconcileError> {
        let mut created = Created::Failed;
        // Until the first one has its status, the whole is repeated
        for (member, bytes) in members.iter().zip(bytes).rev().filter(|(member, _)| member.volume_id().is_none()) {
            let condition = taken_together_condition(member, (self.clients.now)());
            created = self.report_created(member, *bytes, Some(condition)).await?;
        }
        Ok(created)
    }

    /// Writes the failure of the group to the status of all members.
    async fn fail_group(&self, members: &[LogicalVolume], failure: &GroupFailure) -> Result<Created, ReconcileError> {
        for member in members.iter().rev().filter(|member| member.failure().is_none()) {
            match self.writer.report_failure(member, failure.code, &failure.message).await {
                Ok(_) => {}
                Err(error) if error.is_gone_or_replaced() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Created::Failed)
    }
}

impl GroupFailure {
    fn of_lvmd(error: &LvmdError) -> Self {
        // lvmd itself has a reason: the class is thick
        let has_no_reason = matches!(error, LvmdError::Call { reason: None, .. });
        let message = if has_no_reason && error.is_unimplemented() {
            "lvmd on the node does not know snapshots of one moment; upgrade lvmd".to_owned()
        } else {
            error.detail()
        };
        Self { code: error.code(), message }
    }

    fn not_a_snapshot(member: &LogicalVolume) -> Self {
        let message = format!("LogicalVolume {} is a member of a group of snapshots and is none", member.name());
        Self { code: Code::InvalidArgument, message }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::older_lvmd(None, "lvmd on the node does not know snapshots of one moment; upgrade lvmd")]
    #[case::thick_class(Some("SNAPSHOT_NEEDS_THIN"), "the class is thick")]
    fn group_failure_names_an_lvmd_that_does_not_know_the_call(#[case] reason: Option<&str>, #[case] message: &str) {
        let error = LvmdError::Call {
            call: "CreateLVSnapshots",
            code: Code::Unimplemented,
            message: "the class is thick".to_owned(),
            reason: reason.map(str::to_owned),
            is_broken_connection: false,
        };
        let failure = GroupFailure::of_lvmd(&error);
        assert_eq!((failure.code, failure.message.as_str()), (Code::Unimplemented, message));
    }
}
