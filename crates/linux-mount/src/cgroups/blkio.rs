//! Limits in version 1: a line for each device in four files. The kernel applies those of the cgroup that a process is
//! in and of none above it, so that each container has separate limits.

use std::path::{Path, PathBuf};

use topolvm_api::{IoLimit, IoLimits};

use super::{CgroupFiles, LimitError, LimitsInForce};
use crate::DeviceNumber;

/// Gaps of version 1.
const DIRECT_ALONE: &str = "with cgroup version 1 the kernel limits each container separately and does not limit \
                            writes through the page cache; use cgroup version 2";

/// Gives each container of the pod whose cgroup this is these limits on a device, and returns what the kernel shows.
/// A container that starts later has none until this is called again.
pub(super) fn limit(
    files: &dyn CgroupFiles,
    directory: &Path,
    device: DeviceNumber,
    requested: &IoLimits,
) -> Result<LimitsInForce, LimitError> {
    for directory in with_descendants(directory) {
        for limit in IoLimit::ALL {
            match set(files, &directory.join(file(limit)), device, requested.get(limit)) {
                // The container has ended meanwhile
                Err(LimitError::File { .. }) if !directory.exists() => break,
                set => set?,
            }
        }
    }
    let exception = (!requested.is_empty()).then_some(DIRECT_ALONE);
    Ok(LimitsInForce { limits: requested.clone(), exception })
}

/// Returns whether the kernel shows these limits on a device, and no others, for each container of the pod.
pub(super) fn are_in_force(files: &dyn CgroupFiles, directory: &Path, device: DeviceNumber, limits: &IoLimits) -> bool {
    with_descendants(directory).iter().all(|directory| {
        IoLimit::ALL.into_iter().all(|limit| match files.read(&directory.join(file(limit))) {
            Ok(text) => parse(&text, device) == limits.get(limit),
            Err(_) => !directory.exists(),
        })
    })
}

/// Sets a limit, unless it is set; 0 is the kernel's "none".
fn set(files: &dyn CgroupFiles, path: &Path, device: DeviceNumber, requested: Option<u64>) -> Result<(), LimitError> {
    let read = || files.read(path).map_err(|error| LimitError::file("read", path, error));
    if parse(&read()?, device) == requested {
        return Ok(());
    }
    let line = format!("{device} {}", requested.unwrap_or(0));
    files.write(path, &line).map_err(|error| LimitError::file("write to", path, error))?;
    if parse(&read()?, device) == requested { Ok(()) } else { Err(LimitError::NotInForce(path.to_owned())) }
}

/// Returns a directory and all below it.
fn with_descendants(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    let mut next = 0;
    while let Some(directory) = all.get(next) {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let children: Vec<_> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| entry.path())
            .collect();
        all.extend(children);
        next += 1;
    }
    all
}

/// Returns the file of a limit.
const fn file(limit: IoLimit) -> &'static str {
    match limit {
        IoLimit::ReadBytes => "blkio.throttle.read_bps_device",
        IoLimit::WriteBytes => "blkio.throttle.write_bps_device",
        IoLimit::ReadOperations => "blkio.throttle.read_iops_device",
        IoLimit::WriteOperations => "blkio.throttle.write_iops_device",
    }
}

/// Parses the limit of a device. One that has none has no line.
fn parse(text: &str, device: DeviceNumber) -> Option<u64> {
    let device = device.to_string();
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == device)?.1.trim().parse().ok()
}
