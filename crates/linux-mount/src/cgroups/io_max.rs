//! Limits in version 2: a line for each device in `io.max` of the pod's cgroup, which holds for all of its containers
//! together, those that start later, too.

use std::path::Path;

use topolvm_api::{IoLimit, IoLimits};

use super::{CgroupFiles, LimitError, LimitsInForce, controller};
use crate::DeviceNumber;

const FILE: &str = "io.max";
/// Value of a key without a limit.
const NONE: &str = "max";
/// Gap where the controller of memory is in version 1.
const DIRECT_ALONE: &str = "writes through the page cache are not limited, because the cgroups of the pod have no \
                            memory controller of version 2";

/// Gives the pod whose cgroup this is these limits on a device, and returns what the kernel shows.
pub(super) fn limit(
    files: &dyn CgroupFiles,
    root: &Path,
    directory: &Path,
    device: DeviceNumber,
    requested: &IoLimits,
) -> Result<LimitsInForce, LimitError> {
    let path = directory.join(FILE);
    if files.read(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        if requested.is_empty() {
            return Ok(LimitsInForce::default());
        }
        controller::enable(files, root, directory)?;
    }
    let read = || files.read(&path).map_err(|error| LimitError::file("read", &path, error));
    if parse(&read()?, device) != *requested {
        let line = write(device, requested);
        files.write(&path, &line).map_err(|error| LimitError::file("write to", &path, error))?;
        if parse(&read()?, device) != *requested {
            return Err(LimitError::NotInForce(path));
        }
    }
    let limits_writes =
        [IoLimit::WriteBytes, IoLimit::WriteOperations].iter().any(|&limit| requested.get(limit).is_some());
    let exception = (limits_writes && !controller::has_memory(files, directory)).then_some(DIRECT_ALONE);
    Ok(LimitsInForce { limits: requested.clone(), exception })
}

/// Returns whether the kernel shows these limits on a device, and no others, for the pod whose cgroup this is. Of one
/// that has gone meanwhile it does.
pub(super) fn are_in_force(files: &dyn CgroupFiles, directory: &Path, device: DeviceNumber, limits: &IoLimits) -> bool {
    match files.read(&directory.join(FILE)) {
        Ok(text) => parse(&text, device) == *limits,
        // The file goes with the controller, and the limits with it
        Err(_) => !directory.exists(),
    }
}

/// Returns whether the kernel shows these limits on a device, and no others, in a cgroup that exists.
pub(super) fn are_shown(files: &dyn CgroupFiles, directory: &Path, device: DeviceNumber, limits: &IoLimits) -> bool {
    files.read(&directory.join(FILE)).is_ok_and(|text| parse(&text, device) == *limits)
}

/// Returns whether a process is in a cgroup or below it.
pub(super) fn is_populated(files: &dyn CgroupFiles, directory: &Path) -> bool {
    files.read(&directory.join("cgroup.events")).is_ok_and(|text| text.lines().any(|line| line == "populated 1"))
}

/// Returns the key of a limit.
const fn key(limit: IoLimit) -> &'static str {
    match limit {
        IoLimit::ReadBytes => "rbps",
        IoLimit::WriteBytes => "wbps",
        IoLimit::ReadOperations => "riops",
        IoLimit::WriteOperations => "wiops",
    }
}

/// Writes the line of a device. It names all keys: what it does not name would stay.
fn write(device: DeviceNumber, limits: &IoLimits) -> String {
    let keys = IoLimit::ALL.map(|limit| {
        let rate = limits.get(limit).map_or_else(|| NONE.to_owned(), |rate| rate.to_string());
        format!(" {}={rate}", key(limit))
    });
    format!("{device}{}", keys.concat())
}

/// Parses the limits of a device. One that has none has no line.
fn parse(text: &str, device: DeviceNumber) -> IoLimits {
    let device = device.to_string();
    let lines = text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| *name == device);
    let pairs = lines.flat_map(|(_, keys)| keys.split_whitespace()).filter_map(|pair| pair.split_once('='));
    pairs.fold(IoLimits::default(), |limits, (name, value)| {
        match IoLimit::ALL.into_iter().find(|&limit| key(limit) == name) {
            Some(limit) => limits.with(limit, value.parse().ok()),
            None => limits,
        }
    })
}
