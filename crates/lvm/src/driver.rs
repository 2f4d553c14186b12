//! LVM operations on typed values.

use std::sync::Arc;

use crate::report;
use crate::{
    CommandRunner, Error, LvName, LvmCommand, NewSnapshot, NewVolume, Output, ReportError, Tag, VgName, VolumeGroup,
};

/// LVM behind a [`CommandRunner`]. Clones share the runner.
#[derive(Debug)]
pub struct Lvm<R> {
    runner: Arc<R>,
}

impl<R> Clone for Lvm<R> {
    fn clone(&self) -> Self {
        Self { runner: Arc::clone(&self.runner) }
    }
}

impl<R: CommandRunner> Lvm<R> {
    /// LVM behind this runner.
    pub fn new(runner: R) -> Self {
        Self { runner: Arc::new(runner) }
    }

    /// The volume group with the logical volumes in it, in one consistent answer.
    pub async fn volume_group(&self, vg: &VgName) -> Result<VolumeGroup, Error> {
        let command = LvmCommand::report([vg]);
        let output = self.run(&command).await?;
        if output.code != Some(0) {
            return Err(Error::from_output(&command, vg, None, &output));
        }
        groups(&command, &output)?
            .into_iter()
            .find(|group| group.name == *vg)
            .ok_or_else(|| report_error(&command, ReportError::Absent(vg.clone())))
    }

    /// Several volume groups at the price of one command. Each has its own result: a group that is missing does not hide
    /// the others.
    pub async fn volume_groups(&self, vgs: &[VgName]) -> Vec<Result<VolumeGroup, Error>> {
        if vgs.len() > 1
            && let Some(found) = self.all_at_once(vgs).await
        {
            return found;
        }
        // When something is wrong with one, each is asked alone, and so nothing in a failed report is taken for true.
        let mut results = Vec::with_capacity(vgs.len());
        for vg in vgs {
            results.push(self.volume_group(vg).await);
        }
        results
    }

    async fn all_at_once(&self, vgs: &[VgName]) -> Option<Vec<Result<VolumeGroup, Error>>> {
        let command = LvmCommand::report(vgs);
        let output = self.run(&command).await.ok().filter(|output| output.code == Some(0))?;
        let mut found = groups(&command, &output).ok()?;
        let mut take = |vg: &VgName| {
            let index = found.iter().position(|group| group.name == *vg)?;
            Some(Ok(found.swap_remove(index)))
        };
        vgs.iter().map(&mut take).collect()
    }

    /// Creates a logical volume. See [`LvmCommand::create`].
    pub async fn create(&self, volume: &NewVolume<'_>) -> Result<(), Error> {
        self.change(&LvmCommand::create(volume), volume.vg, volume.name).await
    }

    /// Creates a thin snapshot. See [`LvmCommand::snapshot`].
    pub async fn snapshot(&self, snapshot: &NewSnapshot<'_>) -> Result<(), Error> {
        self.change(&LvmCommand::snapshot(snapshot), snapshot.vg, snapshot.source).await
    }

    /// Makes a logical volume `bytes` large, a multiple of 512 that LVM rounds up to whole extents. That it has this size
    /// already is success; that it is larger is an error.
    pub async fn resize(&self, vg: &VgName, name: &LvName, bytes: u64) -> Result<(), Error> {
        let command = LvmCommand::resize(vg, name, bytes);
        match self.change(&command, vg, name).await {
            Err(Error::Exit { stderr, .. }) if stderr.contains(" matches existing size ") => Ok(()),
            result => result,
        }
    }

    /// Removes a logical volume and everything that depends on it. See [`LvmCommand::remove`].
    pub async fn remove(&self, vg: &VgName, name: &LvName) -> Result<(), Error> {
        self.change(&LvmCommand::remove(vg, name), vg, name).await
    }

    /// Adds and takes away tags in one metadata change.
    pub async fn change_tags(&self, vg: &VgName, name: &LvName, add: &[Tag], remove: &[Tag]) -> Result<(), Error> {
        self.change(&LvmCommand::change_tags(vg, name, add, remove), vg, name).await
    }

    async fn change(&self, command: &LvmCommand, vg: &VgName, name: &LvName) -> Result<(), Error> {
        let output = self.run(command).await?;
        if output.code == Some(0) {
            tracing::info!(%command, output = %String::from_utf8_lossy(&output.stdout).trim(), "changed LVM");
            Ok(())
        } else {
            Err(Error::from_output(command, vg, Some(name), &output))
        }
    }

    async fn run(&self, command: &LvmCommand) -> Result<Output, Error> {
        let result = self.runner.run(command).await;
        tracing::debug!(%command, ?result, "ran LVM");
        result.map_err(|error| Error::from_run(command, error))
    }
}

fn groups(command: &LvmCommand, output: &Output) -> Result<Vec<VolumeGroup>, Error> {
    report::parse(&output.stdout).map_err(|source| report_error(command, source))
}

fn report_error(command: &LvmCommand, source: ReportError) -> Error {
    Error::Report { command: command.name().to_owned(), source }
}
