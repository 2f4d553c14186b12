//! `NodeUnpublishVolume`: takes a volume away from a path, whatever state it is in.

use std::path::Path;

use super::request::UnpublishVolume;
use super::target::{ignore_absent, remove};
use super::{Agent, Error};
use crate::mount::{Mounter, STAT, blocking};

/// More layers than kubelet's retries ever stack.
const MOST_LAYERS: usize = 64;

impl<M: Mounter> Agent<M> {
    /// Neither the LogicalVolume nor the LV is looked at: both can be gone, and a pod must be able to end all the same.
    pub(super) async fn unpublish(&self, request: UnpublishVolume) -> Result<(), Error> {
        let UnpublishVolume { id, target } = request;
        self.unstage_leftover(&target).await;
        self.unmount_all(&target).await?;
        blocking(STAT, &target, remove).await?;
        if is_file_name(&id) {
            // Versions before 0.33 made device nodes of their own
            let leftover = self.old_devices.join(&id);
            if let Err(error) = ignore_absent(std::fs::remove_file(&leftover)) {
                tracing::warn!(path = %leftover.display(), %error, "cannot remove an old device node");
            }
        }
        Ok(())
    }

    /// Takes away whatever is mounted at a path. The mount table is asked, not the path: a filesystem whose disk has failed
    /// answers every look with an error.
    pub(super) async fn unmount_all(&self, target: &Path) -> Result<(), Error> {
        for _ in 0..MOST_LAYERS {
            if self.mounter.mounts_at(target).await?.is_empty() {
                break;
            }
            self.mounter.unmount(target).await?;
        }
        Ok(())
    }
}

/// Whether a volume id is a plain file name, so that a path made of it stays in its directory.
fn is_file_name(id: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    id.len() <= 128 && id.chars().all(allowed) && id.contains(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", true)]
    #[case("..", false)]
    #[case(".", false)]
    #[case("", false)]
    #[case("a/b", false)]
    #[case("../../etc/passwd", false)]
    #[case("a\0b", false)]
    fn only_plain_names_become_part_of_a_path(#[case] id: &str, #[case] expected: bool) {
        assert_eq!(is_file_name(id), expected);
    }
}
