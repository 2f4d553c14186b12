//! Flags of `disk`.

use cli_runtime::output::OutputArgs;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use topolvm_api::parse_bytes;

/// A subcommand of `disk`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum DiskCommand {
    /// Lists the disks of volume groups, and those that could become a part of one, with what is done to each.
    List {
        /// Disks of this node [default: of all nodes].
        node: Option<String>,

        #[command(flatten)]
        output: OutputArgs,
    },

    /// Adds a blank disk to the disk group that selects it, also where the mode of the group is report. A disk that has
    /// been evacuated gets new volumes again.
    Add {
        #[command(flatten)]
        target: Target,

        /// Create the DiskOperation, and do not wait for its end.
        #[arg(long)]
        no_wait: bool,
    },

    /// Moves the volumes of a disk to the other disks of its volume group while they are in use. The disk stays in the
    /// group and gets no new volumes, until --stop or add.
    Evacuate {
        #[command(flatten)]
        target: Target,

        /// Largest number of bytes that are moved in a second, such as 100Mi [default: unlimited].
        #[arg(long, value_name = "BYTES", value_parser = parse_rate, conflicts_with = "stop")]
        rate: Option<u64>,

        /// End an evacuation, also one of remove: its DiskOperation is deleted, what has been moved stays where it is,
        /// and the disk gets new volumes again.
        #[arg(long)]
        stop: bool,

        /// Create the DiskOperation, and do not wait for its end.
        #[arg(long)]
        no_wait: bool,
    },

    /// Does the same, and takes the disk out of its volume group when it is empty.
    Remove {
        #[command(flatten)]
        target: Target,

        /// Largest number of bytes that are moved in a second, such as 100Mi [default: unlimited].
        #[arg(long, value_name = "BYTES", value_parser = parse_rate)]
        rate: Option<u64>,

        /// Do it; without this flag the command only prints what it would do.
        #[arg(long)]
        yes: bool,

        /// Create the DiskOperation, and do not wait for its end.
        #[arg(long)]
        no_wait: bool,
    },

    /// Gives a missing disk up: mirrors that have lost it are rebuilt on other disks, and its volume group forgets it.
    /// Refused while a volume without a mirror was on it.
    Replace {
        #[command(flatten)]
        target: Target,

        /// Do it; without this flag the command only prints what it would do.
        #[arg(long)]
        yes: bool,

        /// Create the DiskOperation, and do not wait for its end.
        #[arg(long)]
        no_wait: bool,
    },
}

/// A disk of a node.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Target {
    /// Node of the disk.
    pub(super) node: String,

    /// The disk: LVM's UUID of it, its name in /dev/disk/by-id, or its path.
    pub(super) disk: String,
}

/// Parses a number of bytes of which there is at least one.
fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_bytes(&Quantity(text.to_owned())) {
        Ok(0) => Err("at a rate of 0 it would never end; leave the flag out for no limit".to_owned()),
        rate => rate.map_err(|error| error.to_string()),
    }
}
