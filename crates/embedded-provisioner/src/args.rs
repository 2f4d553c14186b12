//! The flags of the provisioner.

use std::num::NonZeroUsize;
use std::time::Duration;

use topolvm_runtime::time_span::parse_duration;

/// The flags of the provisioner.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ProvisionerArgs {
    /// With --controllers=provisioner: number of volumes that are created at the same time, and of those that are
    /// deleted.
    #[arg(long, value_name = "COUNT", default_value = "100")]
    pub provisioner_worker_threads: NonZeroUsize,

    /// With --controllers=provisioner: pause after the first failure to create or delete a volume. It doubles with each
    /// failure.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub provisioner_retry_interval_start: Duration,

    /// With --controllers=provisioner: longest pause between attempts to create or delete a volume.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub provisioner_retry_interval_max: Duration,

    /// With --controllers=provisioner: time after which an attempt to create or delete a volume counts as failed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub provisioner_timeout: Duration,

    /// With --controllers=provisioner: filesystem of volumes whose StorageClass names none. Empty leaves it to the
    /// agents, which make ext4.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub provisioner_default_fstype: String,

    /// With --controllers=provisioner: prefix of the names of volumes and PersistentVolumes, before the UID of the
    /// claim.
    #[arg(long, value_name = "PREFIX", default_value = "pvc")]
    pub provisioner_volume_name_prefix: String,
}
