//! The checks, in the order in which one looks.

mod api;
mod driver;
mod programs;
mod settings;

use super::Check;

/// All checks.
pub(super) const ALL: &[Check] = &[
    Check { name: "api-server", about: "the version of the API server is supported", run: api::version },
    Check {
        name: "crd",
        about: "LogicalVolume is defined, served, and has the fields that our programs write",
        run: api::definition,
    },
    Check { name: "api-groups", about: "only one of topolvm.io and topolvm.cybozu.com is installed", run: api::groups },
    Check { name: "csidriver", about: "the CSIDriver object is as our programs work", run: driver::object },
    Check { name: "owner", about: "nobody else runs a driver of the same name", run: driver::owner },
    Check {
        name: "node-agents",
        about: "each node with storage has the driver registered and publishes its free space",
        run: programs::agents,
    },
    Check {
        name: "controller",
        about: "the replicas of the controller are ready and one holds the Lease",
        run: programs::controller,
    },
    Check {
        name: "webhooks",
        about: "webhooks point to a Service that answers, and their certificates are valid",
        run: settings::webhooks,
    },
    Check {
        name: "webhook-exemptions",
        about: "pods of kube-system and of the programs themselves do not wait for the webhooks",
        run: settings::exemptions,
    },
    Check {
        name: "storage-classes",
        about: "StorageClasses of our provisioner have parameters that work",
        run: settings::classes,
    },
    Check { name: "rights", about: "the service accounts may do what the programs do", run: programs::rights },
];
