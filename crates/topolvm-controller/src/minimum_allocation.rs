//! Which filesystem a StorageClass or a volume capability names. Pure.

use topolvm_api::FILESYSTEMS;

/// StorageClass parameters with which external-provisioner is told the filesystem; the second is the older one. It compares their names in
/// lower case and refuses a class that has both.
const PARAMETERS: [&str; 2] = ["csi.storage.k8s.io/fstype", "fstype"];

/// Whether a StorageClass parameter of this name says which filesystem is made.
pub(crate) fn is_parameter(name: &str) -> bool {
    PARAMETERS.iter().any(|parameter| name.eq_ignore_ascii_case(parameter))
}

/// The filesystem that these parameters of a StorageClass name; empty where they leave it to the node.
pub(crate) fn of_class<'a>(parameters: impl IntoIterator<Item = (&'a String, &'a String)>) -> &'a str {
    let mut named = parameters.into_iter().filter(|(name, _)| is_parameter(name));
    named.next().map_or("", |(_, filesystem)| filesystem)
}

/// Whether the agents can make a filesystem of this name; the empty name leaves it to them. The name goes to mkfs and to the kernel as it
/// is, and theirs are in lower case.
pub(crate) fn is_known(name: &str) -> bool {
    name.is_empty() || FILESYSTEMS.contains(&name)
}
