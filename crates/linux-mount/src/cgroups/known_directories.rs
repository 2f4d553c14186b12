//! Directories in which pods had their limits at the last check of version 2: while they have them, a check reads one
//! small file of each pod, and neither the mount table of the node nor the directories of other pods.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use super::{CgroupFiles, PodLimits, io_max};

/// Checks after which every pod is searched for again: it may be elsewhere, and what is known be left over.
pub(super) const CHECKS_UNTIL_SEARCH: u32 = 15;

/// Directories of pods, by UID.
#[derive(Debug, Default)]
pub(super) struct KnownDirectories {
    of_pods: HashMap<String, Vec<PathBuf>>,
    /// Checks since the last search for every pod.
    checks: u32,
}

impl KnownDirectories {
    /// Begins a check: returns the limits that must be checked with a search for their pods, because they are not in
    /// force where their pods are known to be.
    pub(super) fn without_limited(&mut self, files: &dyn CgroupFiles, mut expected: Vec<PodLimits>) -> Vec<PodLimits> {
        self.checks += 1;
        if self.checks >= CHECKS_UNTIL_SEARCH {
            *self = Self::default();
            return expected;
        }
        let pods: HashSet<&str> = expected.iter().map(|wanted| wanted.pod.as_str()).collect();
        self.of_pods.retain(|pod, _| pods.contains(pod.as_str()));
        expected.retain(|PodLimits { pod, device, limits }| {
            let is_limited = |directory: &PathBuf| io_max::are_shown(files, directory, *device, limits);
            !self.of_pods.get(pod).is_some_and(|directories| directories.iter().all(is_limited))
        });
        expected
    }

    /// Stores the directories in which a pod has its limits. One that has none is searched for again.
    pub(super) fn insert(&mut self, pod: String, directories: Vec<PathBuf>) {
        if !directories.is_empty() {
            self.of_pods.insert(pod, directories);
        }
    }
}
