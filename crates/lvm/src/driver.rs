//! LVM operations on typed values.

mod batch;
mod disks;
mod pools;
mod relocation;
mod snapshot_group;
mod visible_disks;

use std::slice;
use std::sync::Arc;

use crate::report;
use crate::served_groups::ServedGroups;
use crate::{
    Effect, Error, FullName, Host, HostSettings, LogicalVolume, LvName, LvmCommand, NewSnapshot, NewVolume, Output,
    ReportError, State, Tag, TagChanges, VgName, VolumeGroup,
};

pub use batch::CreatedBatch;

/// LVM of a [`Host`]. Clones share it, and the groups that it serves.
#[derive(Debug)]
pub struct Lvm<R> {
    runner: Arc<R>,
    served: Arc<ServedGroups>,
    owner: Option<Tag>,
}

impl<R> Clone for Lvm<R> {
    fn clone(&self) -> Self {
        Self { runner: Arc::clone(&self.runner), served: Arc::clone(&self.served), owner: self.owner.clone() }
    }
}

impl<R: Host> Lvm<R> {
    /// Returns an LVM behind this runner.
    pub fn new(runner: R) -> Self {
        Self { runner: Arc::new(runner), served: Arc::default(), owner: None }
    }

    /// Reports a volume group with its logical volumes, consistently. A group that LVM finds on a volume is none.
    pub async fn volume_group(&self, vg: &VgName) -> Result<VolumeGroup, Error> {
        let command = LvmCommand::report([vg]);
        match self.report_group(vg, command.clone()).await {
            Err(error) if error.may_be_forged() => self.report_without_others(vg, command, error).await,
            reported => reported,
        }
    }

    /// Reports a volume group with this command.
    async fn report_group(&self, vg: &VgName, command: LvmCommand) -> Result<VolumeGroup, Error> {
        let parse = |output: &Output| {
            if output.code != Some(0) {
                return Err(Error::from_output(&command, vg, None, output));
            }
            groups(&command, output)?
                .into_iter()
                .find(|group| group.name == *vg)
                .ok_or_else(|| report_error(&command, ReportError::Absent(vg.clone())))
        };
        let group = self.ask_unconfined(&command, parse).await?;
        self.check_group(&group).await?;
        Ok(group)
    }

    /// Reads the settings of the host's `lvm.conf` that keep LVM from carrying out commands.
    pub async fn host_settings(&self) -> Result<HostSettings, Error> {
        let command = LvmCommand::host_settings();
        self.ask_unconfined(&command, |output| Ok(HostSettings::parse(succeeded(&command, output)?))).await
    }

    /// Reports several volume groups at the price of one command. Each has its own result: a group that is missing does
    /// not hide the others.
    pub async fn volume_groups(&self, vgs: &[VgName]) -> Vec<Result<VolumeGroup, Error>> {
        if vgs.len() > 1
            && let Some(found) = self.report_in_one_command(vgs).await
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

    /// Reports all volume groups of the machine but these, each with its own result, which takes one process if there
    /// are no others. Groups that come or go at the same time may be missing. A group of another machine is among them
    /// also when it has the name of one of these.
    pub async fn volume_groups_except(&self, known: &[VgName]) -> Result<Vec<Result<VolumeGroup, Error>>, Error> {
        let mut names = self.parse_unconfined(&LvmCommand::group_names(), report::group_names).await?;
        // Two of one name are listed twice
        names.sort_unstable();
        let mut duplicates: Vec<_> = names
            .iter()
            .zip(names.iter().skip(1))
            .filter(|(name, next)| name == next)
            .map(|(name, _)| name.clone())
            .collect();
        duplicates.dedup();
        names.dedup();
        names.retain(|name| !known.contains(name));
        let mut found = self.volume_groups(&names).await;
        for vg in &duplicates {
            found.extend(self.groups_of_other_machines(vg).await?);
        }
        found.retain(|result| !matches!(result, Err(Error::GroupNotFound(_))));
        Ok(found)
    }

    async fn report_in_one_command(&self, vgs: &[VgName]) -> Option<Vec<Result<VolumeGroup, Error>>> {
        let command = LvmCommand::report(vgs);
        let parse = |output: &Output| {
            succeeded(&command, output)?;
            groups(&command, output)
        };
        let mut found = self.ask_unconfined(&command, parse).await.ok()?;
        for group in &found {
            self.check_group(group).await.ok()?;
        }
        let mut take = |vg: &VgName| {
            let index = found.iter().position(|group| group.name == *vg)?;
            Some(Ok(found.swap_remove(index)))
        };
        vgs.iter().map(&mut take).collect()
    }

    /// Creates a logical volume with a making tag, and removes that tag afterwards. A volume without the tag is
    /// complete. See [`LvmCommand::create`].
    pub async fn create(&self, volume: &NewVolume<'_>, making: &Tag) -> Changed {
        let &NewVolume { vg, name, .. } = volume;
        let commands = vec![LvmCommand::create(volume), remove_making_tag(vg, name, making)];
        self.change(vg, name, commands, |volume, result| is_complete(volume, making, result)).await
    }

    /// Creates a logical volume that keeps its making tag.
    pub async fn create_unfinished(&self, volume: &NewVolume<'_>) -> Changed {
        let &NewVolume { vg, name, .. } = volume;
        let commands = vec![LvmCommand::create(volume)];
        self.change(vg, name, commands, |volume, result| volume.is_some() && result.is_created()).await
    }

    /// Creates a thin snapshot with a making tag, like [`create`](Self::create). A snapshot larger than its source, in
    /// bytes, takes two processes: if the first removed the tag, a crash could leave a snapshot that is too small but
    /// looks ready.
    pub async fn snapshot(&self, snapshot: &NewSnapshot<'_>, larger: Option<u64>, making: &Tag) -> Changed {
        let &NewSnapshot { vg, name, .. } = snapshot;
        let create = LvmCommand::snapshot(snapshot);
        if let Some(bytes) = larger {
            let commands = vec![create, LvmCommand::extend(vg, name, bytes)];
            let grown = |volume: Option<&LogicalVolume>, result: &ChangeResult<'_>| {
                volume.is_some_and(|volume| volume.size >= bytes) && result.is_created()
            };
            let begun = self.change(vg, name, commands, grown).await;
            if begun.done.is_err() {
                return begun;
            }
            return self.change_tags(vg, name, &[], slice::from_ref(making)).await;
        }
        let commands = vec![create, remove_making_tag(vg, name, making)];
        self.change(vg, name, commands, |volume, result| is_complete(volume, making, result)).await
    }

    /// Makes a logical volume `bytes` large, a multiple of 512 that LVM rounds up to whole extents. That it has this
    /// size already is success, and so is that it is larger.
    pub async fn resize(&self, vg: &VgName, name: &LvName, bytes: u64) -> Changed {
        let commands = vec![LvmCommand::extend(vg, name, bytes)];
        self.change(vg, name, commands, |volume, _| volume.is_some_and(|volume| volume.size >= bytes)).await
    }

    /// Removes a logical volume and everything that depends on it. See [`LvmCommand::remove`].
    pub async fn remove(&self, vg: &VgName, name: &LvName) -> Changed {
        let commands = vec![LvmCommand::remove(vg, name)];
        self.change(vg, name, commands, |volume, result| volume.is_none() && !result.error.means_not_found(vg, name))
            .await
    }

    /// Removes the logical volume with this identity, and everything that depends on it, but only if it carries the
    /// tag, if one is given. LVM checks the tag while it holds the lock of the group, so that no other process can
    /// change it in between. If the tag is missing, the volume stays and the error is [`Error::Changed`]. A volume that
    /// no longer exists is a success.
    pub async fn remove_if(&self, vg: &VgName, name: &LvName, uuid: &str, tag: Option<&str>) -> Changed {
        let commands = vec![LvmCommand::remove_selected(vg, uuid, tag)];
        let mut changed =
            self.change(vg, name, commands, |_, result| result.group.volume_of_uuid(uuid).is_none()).await;
        let left = changed.group.as_ref().and_then(|group| group.volume_of_uuid(uuid));
        if let (Some(left), Some(tag)) = (left, tag)
            && !left.tags.iter().any(|existing| **existing == *tag)
        {
            changed.done = Err(Error::Changed(FullName::new(vg, name)));
        }
        changed
    }

    /// Returns the percentage of its data or metadata above which a thin pool takes no new volumes (lvm.conf(5)
    /// `activation/thin_pool_autoextend_threshold`).
    pub async fn thin_pool_threshold(&self) -> Result<u32, Error> {
        self.setting("activation/thin_pool_autoextend_threshold", |value| value.parse().ok()).await
    }

    /// Returns what `parse` makes of the value of a setting that LVM uses, given without quotes.
    pub(crate) async fn setting<T>(&self, name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, Error> {
        self.parse_unconfined(&LvmCommand::setting(name), |output| {
            let line = String::from_utf8_lossy(output).trim().to_owned();
            let value = line.split_once('=').and_then(|(_, value)| parse(value.trim_matches('"')));
            value.ok_or(ReportError::Line(line))
        })
        .await
    }

    /// Adds and removes tags, if any, of the logical volume with this identity and gives it another name, which must be
    /// free. A different volume that has its name by now gets no tag.
    pub async fn rename_with_tags(
        &self,
        vg: &VgName,
        name: &LvName,
        uuid: &str,
        tags: TagChanges<'_>,
        new: &LvName,
    ) -> Changed {
        let TagChanges { add, remove } = tags;
        let mut commands = Vec::new();
        if !add.is_empty() || !remove.is_empty() {
            commands.push(LvmCommand::change_tags_of(vg, uuid, add, remove));
        }
        commands.push(LvmCommand::rename(vg, name, new));
        self.change(vg, name, commands, |volume, result| {
            let renamed = result.group.volume(new.as_str()).filter(|renamed| *renamed.uuid == *uuid);
            let has = |tag: &Tag| renamed.is_some_and(|renamed| renamed.has_tag(tag));
            volume.is_none() && renamed.is_some() && add.iter().all(has) && !remove.iter().any(has)
        })
        .await
    }

    /// Activates a logical volume.
    pub async fn activate(&self, vg: &VgName, name: &LvName) -> Changed {
        let commands = vec![LvmCommand::activate(vg, name)];
        self.change(vg, name, commands, |volume, _| volume.is_some_and(|volume| volume.device.is_some())).await
    }

    /// Resumes a suspended logical volume.
    pub async fn refresh(&self, vg: &VgName, name: &LvName) -> Changed {
        let commands = vec![LvmCommand::refresh(vg, name)];
        let goes_on = |volume: &LogicalVolume| volume.attr.state() != State::Suspended;
        self.change(vg, name, commands, |volume, _| volume.is_some_and(goes_on)).await
    }

    /// Adds and takes away tags in one metadata change.
    pub async fn change_tags(&self, vg: &VgName, name: &LvName, add: &[Tag], remove: &[Tag]) -> Changed {
        let commands = vec![LvmCommand::change_tags(vg, name, add, remove)];
        let done = |volume: Option<&LogicalVolume>, _: &ChangeResult<'_>| {
            let has = |tag: &Tag| volume.is_some_and(|volume| volume.has_tag(tag));
            volume.is_some() && add.iter().all(has) && !remove.iter().any(|tag| has(tag) && !add.contains(tag))
        };
        self.change(vg, name, commands, done).await
    }

    /// Runs commands about one volume, one after the other in one LVM process, and reads its group afterwards. The
    /// state of the group determines the result: a later command may have run although an earlier one failed.
    async fn change(
        &self,
        vg: &VgName,
        name: &LvName,
        mut commands: Vec<LvmCommand>,
        is_done: impl FnOnce(Option<&LogicalVolume>, &ChangeResult<'_>) -> bool,
    ) -> Changed {
        commands.push(LvmCommand::report([vg]));
        let changed = match self.run(&commands).await {
            Ok(output) => Self::evaluate(vg, name, &commands, output, is_done),
            Err(error) => Changed { done: Err(error), group: None },
        };
        self.runner.record_outcome(&commands, changed.done.as_ref().err());
        changed
    }

    /// Evaluates the output of commands, the last of which is a report.
    fn evaluate(
        vg: &VgName,
        name: &LvName,
        commands: &[LvmCommand],
        mut output: Output,
        is_done: impl FnOnce(Option<&LogicalVolume>, &ChangeResult<'_>) -> bool,
    ) -> Changed {
        tracing::debug!(commands = display_changes(commands), said = messages(&output), "changed LVM");
        let [first, .., _report] = commands else { return Changed { done: Ok(()), group: None } };
        if commands.len() > 2 {
            remove_consequential_errors(&mut output, vg, name);
        }
        let found = match groups(first, &output) {
            Ok(groups) => groups.into_iter().find(|group| group.name == *vg),
            Err(error) => return Changed { done: Err(error), group: None },
        };
        let error = Error::from_output(first, vg, Some(name), &output);
        let Some(group) = found else {
            let is_silent = output.code == Some(0) && output.stderr.is_empty();
            let absent = || report_error(first, ReportError::Absent(vg.clone()));
            return Changed { done: Err(if is_silent { absent() } else { error }), group: None };
        };
        let volume = group.volume(name.as_str());
        let done = if is_done(volume, &ChangeResult { output: &output, error: &error, group: &group }) {
            Ok(())
        } else if volume.is_some() && error.means_not_found(vg, name) {
            // The report is newer.
            Err(Error::from_output(first, vg, None, &output))
        } else {
            Err(error)
        };
        Changed { done, group: Some(group) }
    }

    /// Returns the runner that was given to [`Self::new`].
    pub fn runner(&self) -> &Arc<R> {
        &self.runner
    }

    /// Runs one command, parses its output and reports the outcome to the runner.
    async fn ask<T>(&self, command: &LvmCommand, parse: impl FnOnce(&Output) -> Result<T, Error>) -> Result<T, Error> {
        let commands = slice::from_ref(command);
        let answer = self.run(commands).await.and_then(|output| parse(&output));
        self.runner.record_outcome(commands, answer.as_ref().err());
        answer
    }

    /// Does the same with all disks that LVM can see, or those that the command names.
    async fn ask_unconfined<T>(
        &self,
        command: &LvmCommand,
        parse: impl FnOnce(&Output) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let commands = slice::from_ref(command);
        let answer = self.run_unconfined(commands).await.and_then(|output| parse(&output));
        self.runner.record_outcome(commands, answer.as_ref().err());
        answer
    }

    /// Runs one command and parses its standard output, if it succeeded.
    pub(crate) async fn parse<T>(
        &self,
        command: &LvmCommand,
        parse: impl FnOnce(&[u8]) -> Result<T, ReportError>,
    ) -> Result<T, Error> {
        self.ask(command, parser(command, parse)).await
    }

    /// Does the same with all disks that LVM can see.
    async fn parse_unconfined<T>(
        &self,
        command: &LvmCommand,
        parse: impl FnOnce(&[u8]) -> Result<T, ReportError>,
    ) -> Result<T, Error> {
        self.ask_unconfined(command, parser(command, parse)).await
    }

    /// Runs commands for which LVM sees nothing but the disks of the served groups.
    async fn run(&self, commands: &[LvmCommand]) -> Result<Output, Error> {
        let confined = self.confine(commands, &[]).await?;
        self.run_unconfined(&confined).await
    }

    async fn run_unconfined(&self, commands: &[LvmCommand]) -> Result<Output, Error> {
        let result = self.runner.run(commands).await;
        tracing::debug!(?commands, ?result, "ran LVM");
        result.map_err(|error| Error::from_run(commands, error))
    }
}

/// Returns a parser of the standard output of a command that succeeded.
fn parser<T>(
    command: &LvmCommand,
    parse: impl FnOnce(&[u8]) -> Result<T, ReportError>,
) -> impl FnOnce(&Output) -> Result<T, Error> {
    move |output| parse(succeeded(command, output)?).map_err(|source| report_error(command, source))
}

/// Returns what a command wrote, if it succeeded.
fn succeeded<'a>(command: &LvmCommand, output: &'a Output) -> Result<&'a [u8], Error> {
    if output.code == Some(0) { Ok(&output.stdout) } else { Err(Error::failed(command, output)) }
}

/// Outcome of a change.
#[derive(Debug)]
#[must_use]
pub struct Changed {
    /// Success if the desired state exists now, else the reason.
    pub done: Result<(), Error>,
    /// The whole volume group afterwards, in either case; `None` if it is unknown.
    pub group: Option<VolumeGroup>,
}

fn remove_making_tag(vg: &VgName, name: &LvName, making: &Tag) -> LvmCommand {
    LvmCommand::change_tags(vg, name, &[], slice::from_ref(making))
}

fn is_complete(volume: Option<&LogicalVolume>, making: &Tag, result: &ChangeResult<'_>) -> bool {
    volume.is_some_and(|volume| !volume.has_tag(making)) && result.is_created()
}

/// Output of the commands of a change, and the volume group afterwards.
struct ChangeResult<'a> {
    output: &'a Output,
    /// As an error, which it may not be.
    error: &'a Error,
    /// The group afterwards.
    group: &'a VolumeGroup,
}

impl ChangeResult<'_> {
    /// Returns whether `lvcreate` succeeded. A volume without the tag proves nothing: it may have existed before, and
    /// the next command removes the tag also from a volume that could not be wiped. LVM may be configured to print no
    /// message about success (lvm.conf(5) `log/silent`), but it always prints failures.
    fn is_created(&self) -> bool {
        let is_reported =
            String::from_utf8_lossy(&self.output.stdout).lines().any(|line| line.trim().ends_with(" created."));
        let mut complaints = self.output.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        is_reported || complaints.all(|line| line.starts_with("WARNING:"))
    }
}

/// Removes the errors of commands that failed only because an earlier one created nothing.
fn remove_consequential_errors(output: &mut Output, vg: &VgName, name: &LvName) {
    let consequences = [
        format!("Failed to find logical volume \"{vg}/{name}\""),
        format!("Logical volume {name} not found in volume group {vg}."),
    ];
    let is_cause = |line: &&str| !consequences.iter().any(|consequence| line.trim() == consequence);
    let causes: Vec<_> = output.stderr.lines().filter(is_cause).collect();
    if causes.iter().any(|line| !line.trim().is_empty()) {
        output.stderr = causes.join("\n");
    }
}

/// Returns the commands that change something as one would type them.
fn display_changes(commands: &[LvmCommand]) -> String {
    let changes = commands.iter().filter(|command| command.effect() == Effect::Change).map(LvmCommand::to_string);
    changes.collect::<Vec<_>>().join("; ")
}

/// Returns the lines that LVM wrote besides the report.
fn messages(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().chain(output.stderr.lines()).map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with(report::PREFIX)).collect::<Vec<_>>().join("; ")
}

fn groups(command: &LvmCommand, output: &Output) -> Result<Vec<VolumeGroup>, Error> {
    report::parse(&output.stdout).map_err(|source| report_error(command, source))
}

fn report_error(command: &LvmCommand, source: ReportError) -> Error {
    Error::Report { command: command.name().to_owned(), source }
}
