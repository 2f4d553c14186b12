//! The checks, in the order in which one looks.

mod api;
mod driver;
mod programs;
mod settings;

use super::{Check, CheckFn};

/// All checks.
pub(super) const ALL: &[Check] = &[
    check("api-server", "the version of the API server is supported", api::version),
    check("crd", "LogicalVolume is defined, served, and has the fields that our programs write", api::definition),
    check("api-groups", "only one of topolvm.io and topolvm.cybozu.com is installed", api::groups),
    check("csidriver", "the CSIDriver object is as our programs work", driver::object),
    check("owner", "nobody else runs a driver of the same name", driver::owner),
    check(
        "node-agents",
        "each node with storage has the driver registered and publishes its free space",
        programs::agents,
    ),
    check("controller", "the replicas of the controller are ready and one holds the Lease", programs::controller),
    check("webhooks", "webhooks point to a Service that answers, and their certificates are valid", settings::webhooks),
    check(
        "webhook-exemptions",
        "pods of kube-system and of the programs themselves do not wait for the webhooks",
        settings::exemptions,
    ),
    check("storage-classes", "StorageClasses of our provisioner have parameters that work", settings::classes),
    check("rights", "the service accounts may do what the programs do", programs::rights),
];

const fn check(name: &'static str, about: &'static str, run: CheckFn) -> Check {
    Check { name, about, run }
}
