//! `make bench`: every figure on a separate line, `bench NAME VALUE UNIT goal GOAL ok|short`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "figures for a person in a terminal")]

mod agent;
mod api_client;
mod capacity;
mod cluster;
mod controller_pod;
mod create;
mod figure;
mod images;
mod install;
mod io;
mod lvmd;
mod memory;
mod metrics;
mod pod_memory;
mod scale;
mod scheduler;
mod volume_metrics;
mod watching;
mod web_page;

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use testbed::{machine, program};

use crate::figure::{Figure, Selector};

#[derive(Debug, Parser)]
#[command(about = "Measures the product and prints each figure with its goal")]
struct Args {
    /// Only the parts with figures whose names begin like this, for example csi.create; csi has those of its two
    /// programs, too, and io those of limits.
    #[arg(long, default_value = "")]
    only: String,

    /// Divides the numbers of nodes and volumes of the figures that begin with scale, while a program is
    /// developed; their goals are then meaningless.
    #[arg(long, default_value = "1")]
    divide: NonZeroUsize,
}

impl Args {
    fn selects(&self, name: &str) -> bool {
        let is_of_csi = || agent::FAMILIES.iter().any(|family| name.starts_with(family));
        let is_of_io = || io::FAMILIES.iter().any(|family| name.starts_with(family));
        name.starts_with(&self.only) || self.only == "csi" && is_of_csi() || self.only == "io" && is_of_io()
    }
}

/// A group of figures that are measured together.
struct Part {
    /// Prefixes of the figures' names.
    families: &'static [&'static str],
    /// Measures the selected figures in an empty directory, those of scale with divided numbers of objects.
    measure: fn(&Path, &Selector<'_>, NonZeroUsize) -> Result<Vec<Figure>>,
}

const PARTS: [Part; 13] = [
    Part { families: &lvmd::FAMILIES, measure: |directory, wanted, _| lvmd::run(directory, wanted) },
    Part { families: &["csi.create."], measure: |directory, _, _| create::run(directory) },
    Part { families: &agent::FAMILIES, measure: |directory, wanted, _| agent::run(directory, wanted) },
    Part { families: &scheduler::FAMILIES, measure: |directory, _, _| scheduler::run(directory) },
    Part { families: &capacity::FAMILIES, measure: |directory, wanted, _| capacity::run(directory, wanted) },
    Part { families: &cluster::FAMILIES, measure: |directory, wanted, _| cluster::run(directory, wanted) },
    Part { families: &[volume_metrics::FAMILY], measure: |directory, _, _| volume_metrics::run(directory) },
    Part { families: &[web_page::FAMILY], measure: |directory, _, _| web_page::run(directory) },
    Part { families: &images::FAMILIES, measure: |directory, _, _| images::run(directory) },
    Part { families: &install::FAMILIES, measure: |directory, _, _| install::run(directory) },
    Part { families: &[controller_pod::FAMILY], measure: |directory, _, _| controller_pod::run(directory) },
    Part { families: &scale::FAMILIES, measure: scale::run },
    Part { families: &io::FAMILIES, measure: |directory, wanted, _| io::run(directory, wanted) },
];

fn main() -> ExitCode {
    if let Some(code) = program::serve().or_else(lvmd::serve) {
        return code;
    }
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let Some(missing) = machine::missing_for_clusters() {
        bail!("{missing}");
    }
    let wanted = |family: &str| args.selects(family) || args.only.starts_with(family);
    let parts: Vec<&Part> = PARTS.iter().filter(|part| part.families.iter().any(|family| wanted(family))).collect();
    if parts.is_empty() {
        let families: Vec<&str> = PARTS.iter().flat_map(|part| part.families).copied().collect();
        bail!("no figure begins with {:?}; there are: {}", args.only, families.join(", "));
    }
    for part in parts {
        let directory = tempfile::Builder::new().prefix("topolvm-bench-").tempdir_in("/var/tmp")?;
        let figures = (part.measure)(directory.path(), &wanted, args.divide)?;
        for figure in figures.iter().filter(|figure| args.selects(figure.name)) {
            println!("{figure}");
        }
    }
    Ok(())
}
