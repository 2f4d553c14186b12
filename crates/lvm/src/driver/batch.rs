//! Creates or extends several thick logical volumes of one group: the metadata is written for each, but one report
//! serves all, and one command takes away the tags of new ones.

use super::{Changed, Lvm};
use crate::report;
use crate::{Error, Host, LvName, LvmCommand, NewVolume, Output, ReportError, Tag, VgName, VolumeGroup};

/// Outcome of the creation of several logical volumes.
#[derive(Debug)]
#[must_use]
pub struct CreatedBatch {
    /// The report that came with it, or the reason why there is none.
    pub changed: Changed,
    /// For each volume, in the order of the request: true if it exists and is ready. If it is false, LVM may have
    /// created nothing, or a volume that still carries its tag.
    pub ready: Vec<bool>,
}

impl<R: Host> Lvm<R> {
    /// Creates logical volumes, each with its own making tag, and removes the tags of those that LVM reports as
    /// created: a volume that could not be wiped keeps its tag. The result contains no reasons for failures;
    /// [`create`](Self::create) returns them.
    pub async fn create_batch(&self, vg: &VgName, volumes: &[(NewVolume<'_>, &Tag)]) -> CreatedBatch {
        let creations: Vec<_> = volumes.iter().map(|(volume, _)| LvmCommand::create(volume)).collect();
        let created = self.run(&creations).await.map(|output| {
            let is_created = |(volume, _): &(NewVolume<'_>, &Tag)| reports_created(&output, volume.name);
            volumes.iter().map(is_created).collect::<Vec<_>>()
        });
        self.runner.record_outcome(&creations, created.as_ref().err());
        let created = match created {
            Ok(created) => created,
            Err(error) => return CreatedBatch::unknown(error, volumes.len()),
        };
        let names = || volumes.iter().map(|(volume, making)| (volume.name, *making));
        let made = names().zip(&created).filter(|(_, created)| **created).map(|(made, _)| made);
        match self.remove_making_tags(vg, made).await {
            Ok(group) => CreatedBatch::of(group, names(), &created),
            Err(error) => CreatedBatch::unknown(error, volumes.len()),
        }
    }

    /// Resizes logical volumes to these sizes in bytes, multiples of 512, and reports the group, which shows the
    /// volumes that have reached their size. The result contains no reasons for failures; [`resize`](Self::resize)
    /// returns them.
    pub async fn resize_batch(&self, vg: &VgName, volumes: &[(&LvName, u64)]) -> Changed {
        let mut commands: Vec<_> = volumes.iter().map(|(name, bytes)| LvmCommand::extend(vg, name, *bytes)).collect();
        commands.push(LvmCommand::report([vg]));
        match self.run_with_report(vg, &commands).await {
            Ok(group) => Changed { done: Ok(()), group: Some(group) },
            Err(error) => Changed { done: Err(error), group: None },
        }
    }

    /// Takes the tags away from the volumes that were created, and reports the group.
    pub(super) async fn remove_making_tags<'a>(
        &self,
        vg: &VgName,
        created: impl IntoIterator<Item = (&'a LvName, &'a Tag)>,
    ) -> Result<VolumeGroup, Error> {
        let (names, tags): (Vec<_>, Vec<_>) = created.into_iter().unzip();
        if names.is_empty() {
            return self.volume_group(vg).await;
        }
        let untag = LvmCommand::remove_tags(vg, names, tags);
        self.run_with_report(vg, &[untag, LvmCommand::report([vg])]).await
    }

    /// Runs commands, the last of which is a report, and returns the group from that.
    async fn run_with_report(&self, vg: &VgName, commands: &[LvmCommand]) -> Result<VolumeGroup, Error> {
        let reported = self.run(commands).await.and_then(|output| {
            let report = commands.last().map_or("fullreport", LvmCommand::name);
            let error = |source| Error::Report { command: report.to_owned(), source };
            let found = report::parse(&output.stdout).map_err(error)?.into_iter().find(|group| group.name == *vg);
            found.ok_or_else(|| error(ReportError::Absent(vg.clone())))
        });
        self.runner.record_outcome(commands, reported.as_ref().err());
        reported
    }
}

impl CreatedBatch {
    pub(super) fn of<'a>(
        group: VolumeGroup,
        volumes: impl IntoIterator<Item = (&'a LvName, &'a Tag)>,
        created: &[bool],
    ) -> Self {
        let is_ready = |((name, making), created): ((&LvName, &Tag), &bool)| {
            *created && group.volume(name.as_str()).is_some_and(|found| !found.has_tag(making))
        };
        let ready = volumes.into_iter().zip(created).map(is_ready).collect();
        Self { changed: Changed { done: Ok(()), group: Some(group) }, ready }
    }

    pub(super) fn unknown(error: Error, volumes: usize) -> Self {
        Self::failed(error, None, volumes)
    }

    pub(super) fn failed(error: Error, group: Option<VolumeGroup>, volumes: usize) -> Self {
        Self { changed: Changed { done: Err(error), group }, ready: vec![false; volumes] }
    }
}

/// Returns whether `lvcreate` reported that it created this volume, which is its last message.
pub(super) fn reports_created(output: &Output, name: &LvName) -> bool {
    let line = format!("Logical volume \"{name}\" created.");
    String::from_utf8_lossy(&output.stdout).lines().any(|printed| printed.trim() == line)
}
