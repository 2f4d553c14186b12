//! Flags of `trial`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::install::{directory, label};

/// Flags of `trial`.
#[derive(Clone, Debug, clap::Args)]
pub struct TrialFlags {
    /// Size of the file on each node. A larger size than before grows the file; a file never shrinks.
    #[arg(long, value_name = "SIZE", default_value = "10Gi", value_parser = size)]
    pub(super) size: u64,

    /// Node to use; may be repeated [default: the only node].
    #[arg(long, value_name = "NAME", conflicts_with = "node_selector")]
    pub(super) node: Vec<String>,

    /// Label of the nodes to use; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub(super) node_selector: Vec<(String, String)>,

    /// Directory of the file on the nodes.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/topolvm-trial", value_parser = directory)]
    pub(super) directory: String,

    /// Container image if TopoLVM is not installed yet [default: the image of this version].
    #[arg(long, value_name = "NAME:TAG")]
    pub(super) image: Option<String>,

    /// Root directory of the kubelet on the nodes if TopoLVM is not installed yet [default: /var/lib/kubelet].
    #[arg(long, value_name = "DIR", value_parser = directory)]
    pub(super) kubelet_dir: Option<String>,

    /// Remove the files with their volume groups, and the programs if the trial installed them. Refuses while volumes
    /// exist.
    #[arg(long, conflicts_with_all = ["node", "node_selector", "kubelet_dir"])]
    pub(super) remove: bool,

    /// Do not create a test volume.
    #[arg(long)]
    pub(super) no_smoke_test: bool,

    /// Timeout of each step: the commands on a node, the start of all pods, the smoke test.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,
}

/// Parses a size, and rounds it up to whole MiB. The smallest one holds a volume of 512 MiB.
fn size(text: &str) -> Result<u64, String> {
    const SMALLEST: u64 = 1 << 30;
    let bytes = topolvm_api::parse_bytes(&Quantity(text.to_owned())).map_err(|error| error.to_string())?;
    if bytes < SMALLEST {
        return Err("the smallest size is 1Gi".to_owned());
    }
    bytes.checked_next_multiple_of(1 << 20).ok_or_else(|| "no disk has this size; choose a smaller one".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_quantity_of_at_least_a_gibibyte() {
        assert_eq!(size("10Gi"), Ok(10 << 30));
        assert_eq!(size("1500M").map(|bytes| bytes % (1 << 20)), Ok(0));
        for (text, expected) in
            [("512Mi", "the smallest size is 1Gi"), ("much", "is not a quantity"), ("-1Gi", "is negative")]
        {
            let error = size(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
