//! `make bench`: every figure on a line of its own, `bench NAME VALUE UNIT goal GOAL ok|short`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "figures for a person in a terminal")]

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use system_tests::bench::{Figure, create};
use testbed::{machine, program};

#[derive(Debug, Parser)]
#[command(about = "Measures the product and prints each figure beside its goal")]
struct Args {
    /// Only the parts with figures whose names begin like this, for example csi.create.
    #[arg(long, default_value = "")]
    only: String,
}

/// A part: the beginning of its figures' names, and what measures them.
type Part = (&'static str, fn(&Path) -> Result<Vec<Figure>>);

const PARTS: [Part; 1] = [("csi.create", create::run)];

fn main() -> ExitCode {
    if let Some(code) = program::serve() {
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
    let wanted = |part: &Part| part.0.starts_with(&args.only) || args.only.starts_with(part.0);
    if !PARTS.iter().any(wanted) {
        bail!("no figure begins with {:?}; there are: {}", args.only, PARTS.map(|part| part.0).join(", "));
    }
    for (_, measure) in PARTS.iter().filter(|part| wanted(part)) {
        let directory = tempfile::Builder::new().prefix("topolvm-bench-").tempdir_in("/var/tmp")?;
        for figure in measure(directory.path())?.iter().filter(|figure| figure.name.starts_with(&args.only)) {
            println!("{figure}");
        }
    }
    Ok(())
}
