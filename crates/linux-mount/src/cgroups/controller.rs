//! Enables the controller `io` of version 2 down to the cgroup of a pod, as container runtimes do.

use std::path::{Path, PathBuf};

use super::{CgroupFiles, LimitError};

const AVAILABLE: &str = "cgroup.controllers";
const ENABLED_BELOW: &str = "cgroup.subtree_control";

/// Returns whether a cgroup can have the controller.
pub(super) fn is_available(files: &dyn CgroupFiles, directory: &Path) -> bool {
    has_keyword(files, &directory.join(AVAILABLE), "io")
}

/// Returns whether a cgroup has the controller of memory, without which the kernel does not know whose the data is that
/// it writes later.
pub(super) fn has_memory(files: &dyn CgroupFiles, directory: &Path) -> bool {
    has_keyword(files, &directory.join(AVAILABLE), "memory")
}

/// Enables the controller in every cgroup above `directory`, from the root of the hierarchy down.
pub(super) fn enable(files: &dyn CgroupFiles, root: &Path, directory: &Path) -> Result<(), LimitError> {
    let above = directory.ancestors().skip(1).take_while(|above| above.starts_with(root));
    let mut above: Vec<PathBuf> = above.map(|above| above.join(ENABLED_BELOW)).collect();
    above.reverse();
    for path in above {
        if !has_keyword(files, &path, "io") {
            files.write(&path, "+io").map_err(|source| LimitError::NotEnabled { path: path.clone(), source })?;
        }
    }
    Ok(())
}

fn has_keyword(files: &dyn CgroupFiles, path: &Path, wanted: &str) -> bool {
    files.read(path).is_ok_and(|text| text.split_whitespace().any(|word| word == wanted))
}
