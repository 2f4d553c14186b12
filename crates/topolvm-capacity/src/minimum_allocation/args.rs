//! Flags with the smallest sizes of volumes.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use topolvm_api::{ParseQuantityError, parse_bytes};

/// The smallest volumes that are made, in bytes. Smaller requests are raised to these sizes, because mkfs refuses
/// devices that are too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct MinimumAllocation {
    /// Minimum size of raw block volumes; smaller requests are raised to it.
    #[arg(long = "minimum-allocation-block", value_name = "QUANTITY", default_value = "8Mi",
          value_parser = parse_minimum)]
    pub block: u64,

    /// Minimum size of volumes with ext4 or without a filesystem type; smaller requests are raised to it.
    #[arg(long = "minimum-allocation-ext4", value_name = "QUANTITY", default_value = "32Mi",
          value_parser = parse_minimum)]
    pub ext4: u64,

    /// Minimum size of volumes with XFS; smaller requests are raised to it.
    #[arg(long = "minimum-allocation-xfs", value_name = "QUANTITY", default_value = "300Mi",
          value_parser = parse_minimum)]
    pub xfs: u64,

    /// Minimum size of volumes with Btrfs; smaller requests are raised to it.
    #[arg(long = "minimum-allocation-btrfs", value_name = "QUANTITY", default_value = "200Mi",
          value_parser = parse_minimum)]
    pub btrfs: u64,
}

/// Parses a quantity in bytes. A negative minimum means none, as it does in TopoLVM.
fn parse_minimum(text: &str) -> Result<u64, ParseQuantityError> {
    match parse_bytes(&Quantity(text.to_owned())) {
        Err(ParseQuantityError::Negative(_)) => Ok(0),
        parsed => parsed,
    }
}
