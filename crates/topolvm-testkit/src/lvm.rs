//! A fake LVM behind [`lvm::CommandRunner`]: it keeps volume groups in memory, follows LVM's rules, and answers with
//! LVM's own reports, messages and exit statuses.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that uses the fake wrongly is to fail at once"
)]

mod change;
mod disk;
mod fault;
mod report;
mod state;
pub mod story;
mod wipe;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lvm::{
    CommandRunner, Device, DeviceStatus, Devices, GroupLock, LogicalVolume, LvmCommand, Output, PhysicalVolume,
    RunError, Version, VgName, VolumeGroup, Wipeable,
};

pub use disk::HangingDisk;
pub use fault::{Fault, Pause};
pub use state::{EXTENT, FakeVolume};
pub use wipe::{Held, Stop};

use fault::{Plan, When};
use state::{Group, State};

/// The fake. Clones share the same volume groups.
#[derive(Clone, Default)]
pub struct FakeLvm {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    plan: Mutex<Plan>,
    stop: wipe::Gate,
    hanging: disk::Hanging,
}

impl FakeLvm {
    /// No volume group at all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a volume group of `bytes` (rounded down to extents of 4 MiB) on one physical volume.
    #[must_use]
    pub fn with_group(self, vg: &str, bytes: u64) -> Self {
        self.add_group(vg, bytes, 1);
        self
    }

    /// Adds a volume group of `bytes` on `pvs` physical volumes.
    pub fn add_group(&self, vg: &str, bytes: u64, pvs: u32) {
        self.state().groups.insert(vg.to_owned(), Group::new(vg, bytes, pvs));
    }

    /// Makes a volume group vanish, as when its disk is pulled.
    pub fn lose_group(&self, vg: &str) {
        self.state().groups.remove(vg);
    }

    /// Gives a volume group another name, as `vgrename` does; its disks stay what they are.
    pub fn rename_group(&self, vg: &str, to: &str) {
        let mut state = self.state();
        if let Some(mut group) = state.groups.remove(vg) {
            group.seqno += 1;
            state.groups.insert(to.to_owned(), group);
        }
    }

    /// Makes a volume group larger, as `vgextend` does.
    pub fn extend_group(&self, vg: &str, bytes: u64) {
        self.with(vg, |group| group.extents += bytes / EXTENT);
    }

    /// Says how many physical volumes of the group are missing.
    pub fn miss_pvs(&self, vg: &str, missing: u32) {
        self.with(vg, |group| group.missing_pvs = missing);
    }

    /// Says whether the metadata on the group's physical volumes can be read without LVM.
    pub fn hide_metadata(&self, vg: &str, hide: bool) {
        self.with(vg, |group| group.is_unreadable = hide);
    }

    /// Says that device-mapper cannot be asked, as in a container without it: then LVM is asked for each list of
    /// volumes, and what a test changes behind lvmd's back is seen at once.
    pub fn hide_devices(&self) {
        self.state().devices_are_hidden = true;
    }

    /// Sets lvm.conf(5) `activation/thin_pool_autoextend_threshold`: thin pools take no volumes above so many percent.
    pub fn set_thin_pool_threshold(&self, percent: u8) {
        self.state().thin_pool_threshold = Some(percent);
    }

    /// From now on reading this physical volume of a group hangs, until the returned value is dropped.
    pub fn hang_disk(&self, vg: &str, index: u32) -> HangingDisk {
        let uuid = format!("{}-{index}", self.state().group(vg).uuid);
        HangingDisk::new(self.clone(), uuid)
    }

    /// Lets them be looked at again.
    pub fn show_devices(&self) {
        self.state().devices_are_hidden = false;
    }

    /// Puts a volume into a group behind the back of whoever is tested.
    pub fn add_volume(&self, vg: &str, name: &str, volume: FakeVolume) {
        self.state().add_volume(vg, name, volume);
    }

    /// Takes a volume out of a group behind the back of whoever is tested.
    pub fn lose_volume(&self, vg: &str, name: &str) {
        self.with(vg, |group| group.volumes.remove(name));
    }

    /// Changes a volume in place: opens it, deactivates it, breaks it.
    ///
    /// # Panics
    /// When there is no such volume.
    pub fn edit_volume(&self, vg: &str, name: &str, edit: impl FnOnce(&mut FakeVolume)) {
        let mut state = self.state();
        let group = state.group(vg);
        edit(group.volumes.get_mut(name).expect("no such volume in the fake LVM"));
    }

    /// A copy of a volume.
    pub fn volume(&self, vg: &str, name: &str) -> Option<FakeVolume> {
        self.state().groups.get(vg)?.volumes.get(name).cloned()
    }

    /// Names, when they went, of the volumes that were removed from a group without having been wiped, in order.
    pub fn removed_unwiped(&self, vg: &str) -> Vec<String> {
        self.state().group(vg).removed_unwiped.clone()
    }

    /// From now on wiping stops before this byte of any device, until the returned value is told to let it go on, or is
    /// dropped.
    pub fn stop_wiping_at(&self, byte: u64) -> Stop {
        Stop::new(self.clone(), byte)
    }

    /// Names of the volumes in a group, sorted.
    pub fn volumes(&self, vg: &str) -> Vec<String> {
        self.state().groups.get(vg).map(|group| group.volumes.keys().cloned().collect()).unwrap_or_default()
    }

    /// Free bytes in a group.
    pub fn free(&self, vg: &str) -> u64 {
        self.state().group(vg).free_extents() * EXTENT
    }

    /// How often an LVM sub-command was started.
    pub fn count(&self, command: &str) -> usize {
        self.plan().started.iter().filter(|started| started.name() == command).count()
    }

    /// How many LVM processes were started.
    pub fn processes(&self) -> usize {
        self.plan().processes
    }

    /// Every command that was started, in order, as one would type it.
    pub fn commands(&self) -> Vec<String> {
        self.plan().started.iter().map(ToString::to_string).collect()
    }

    /// Every process takes this long.
    pub fn set_latency(&self, latency: Duration) {
        self.plan().latency = latency;
    }

    /// The `nth` start of a sub-command from now on (1 is the next) fails without doing anything.
    pub fn fail(&self, command: &str, nth: usize, fault: Fault) {
        self.plan().add(When::Before, command, Some(nth), fault.into_step());
    }

    /// The `nth` start of a sub-command from now on does its work, and then looks failed.
    pub fn fail_after_success(&self, command: &str, nth: usize, fault: Fault) {
        self.plan().add(When::After, command, Some(nth), fault.into_step());
    }

    /// Every start of a sub-command fails, until [`Self::heal`].
    pub fn break_down(&self, command: &str, fault: Fault) {
        self.plan().add(When::Before, command, None, fault.into_step());
    }

    /// Takes back all faults, pauses and hooks that were not used up.
    pub fn heal(&self) {
        self.plan().clear();
    }

    /// The next start of a sub-command waits, before it does anything, until it is told to go on.
    pub fn pause(&self, command: &str) -> Pause {
        let (pause, step) = Pause::new();
        self.plan().add(When::Before, command, Some(1), step);
        pause
    }

    /// The next start of a sub-command does its work, and then waits before it ends.
    pub fn pause_after(&self, command: &str) -> Pause {
        let (pause, step) = Pause::new();
        self.plan().add(When::After, command, Some(1), step);
        pause
    }

    /// Calls `hook` before every start of a sub-command.
    pub fn before(&self, command: &str, hook: impl Fn(&LvmCommand) + Send + Sync + 'static) {
        self.plan().add(When::Before, command, None, fault::Step::Hook(Arc::new(hook)));
    }

    /// Calls `hook` after every sub-command of this name has done its work.
    pub fn after(&self, command: &str, hook: impl Fn(&LvmCommand) + Send + Sync + 'static) {
        self.plan().add(When::After, command, None, fault::Step::Hook(Arc::new(hook)));
    }

    fn with<T>(&self, vg: &str, change: impl FnOnce(&mut Group) -> T) -> T {
        let mut state = self.state();
        let group = state.group(vg);
        group.seqno += 1;
        change(group)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn steps(&self, when: When, command: &LvmCommand) -> Result<Option<Output>, RunError> {
        let steps = self.plan().take(when, command.name());
        for step in steps {
            if let Some(output) = step.run(command).await? {
                return Ok(Some(output));
            }
        }
        Ok(None)
    }
}

impl CommandRunner for FakeLvm {
    /// Like LVM's shell, it goes on after a command that failed.
    async fn run(&self, commands: &[LvmCommand]) -> Result<Output, RunError> {
        let latency = {
            let mut plan = self.plan();
            plan.processes += 1;
            plan.latency
        };
        if !latency.is_zero() {
            // tokio's timers have whole milliseconds and may ring two of them late, which a process does not
            tokio::task::spawn_blocking(move || std::thread::sleep(latency))
                .await
                .map_err(|error| RunError::Read(error.into()))?;
        }
        let mut all = Output { code: Some(0), processes: 1, ..Output::default() };
        for command in commands {
            let output = self.run_one(command).await?;
            all.stdout.extend(output.stdout);
            all.stderr.push_str(&output.stderr);
            if commands.len() == 1 {
                all.code = output.code;
            }
        }
        Ok(all)
    }

    /// There are no such programs beside the fake.
    async fn run_program(&self, program: &'static str, _: &[String]) -> Result<Output, RunError> {
        Err(RunError::Spawn { program: program.to_owned(), source: io::ErrorKind::NotFound.into() })
    }
}

impl Devices for FakeLvm {
    fn version(&self, pv: &PhysicalVolume) -> io::Result<Option<Version>> {
        self.shared.hanging.pass(&pv.uuid);
        let state = self.state();
        let group = state.groups.values().find(|group| pv.uuid.starts_with(&format!("{}-", group.uuid)));
        let group = group.ok_or(io::ErrorKind::NotFound)?;
        let index: u32 = pv.uuid.rsplit('-').next().and_then(|index| index.parse().ok()).unwrap_or(u32::MAX);
        if index < group.missing_pvs || group.is_unreadable {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Some(Version { vg_uuid: group.uuid.clone(), seqno: group.seqno }))
    }

    fn status(&self, vg: &VolumeGroup, volume: &LogicalVolume) -> io::Result<Option<DeviceStatus>> {
        let state = self.state();
        let volume = state.groups.get(vg.name.as_str()).and_then(|group| group.volumes.get(&*volume.name));
        Ok(volume.filter(|volume| volume.active).map(|volume| DeviceStatus {
            open_count: u32::from(volume.open) + u32::from(volume.held),
            fill: volume.attr.starts_with('t').then_some((volume.data_percent, volume.metadata_percent)),
            mapped_sectors: None,
            condition: volume.attr.get(8..9).unwrap_or_default().to_owned(),
        }))
    }

    fn mapped(&self) -> io::Result<HashMap<String, Device>> {
        let state = self.state();
        if state.devices_are_hidden {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mapped = state.groups.iter().flat_map(|(vg, group)| {
            let active = group.volumes.iter().filter(|(_, volume)| volume.active);
            active.map(move |(name, volume)| {
                let layer = if volume.attr.starts_with('t') { "-tpool" } else { "" };
                let name = format!("{}-{}{layer}", vg.replace('-', "--"), name.replace('-', "--"));
                (name, Device { major: 253, minor: volume.minor })
            })
        });
        Ok(mapped.collect())
    }

    fn partitions(&self) -> io::Result<String> {
        let state = self.state();
        let disks: BTreeMap<_, _> =
            state.groups.values().map(|group| (&group.uuid, group.pvs - group.missing_pvs)).collect();
        Ok(format!("{disks:?}"))
    }

    fn hold(&self, vg: &VgName, volume: &LogicalVolume) -> io::Result<Box<dyn Wipeable>> {
        Ok(Box::new(Held::new(self, vg.as_str(), volume)?))
    }

    /// Nobody else works with the fake.
    fn lock_group(&self, _: &Path, _: &VgName, _: Duration) -> io::Result<GroupLock> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl FakeLvm {
    async fn run_one(&self, command: &LvmCommand) -> Result<Output, RunError> {
        self.plan().started.push(command.clone());
        if let Some(output) = self.steps(When::Before, command).await? {
            return Ok(output);
        }
        let output = self.state().execute(command);
        Ok(self.steps(When::After, command).await?.unwrap_or(output))
    }
}

impl fmt::Debug for FakeLvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeLvm").finish_non_exhaustive()
    }
}
