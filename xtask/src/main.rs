//! The drivers behind the Makefile: lint, generated files, the test layers and their summary.
#![expect(
    clippy::disallowed_methods,
    reason = "starts cargo and other tools for a living, and reads their environment"
)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is for a person in a terminal")]

mod archive;
mod book;
mod deb;
mod dist;
mod fuzz;
mod generate;
mod images;
mod krew;
mod layers;
mod lint;
mod notices;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Checks, generated files and test layers of this repository")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Format, clippy, documentation links, licences and dependency rules, generated files.
    Lint,
    /// Write the files that are generated from the code (CRDs, tables in docs/).
    Generate {
        /// Write nothing; fail when a file is not what would be written.
        #[arg(long)]
        check: bool,
    },
    /// Run the test layers and print a summary.
    Test {
        /// Layers to run, in the order given; without this all but guest and testbed, which test the test bed.
        #[arg(value_enum)]
        layers: Vec<layers::Layer>,
    },
    /// Build the documentation as a book, in target/book/html, and check its links.
    Docs,
    /// Build the container image from the release programs, without a container engine.
    Images(images::Options),
    /// Build the Debian package of lvmd, in target/debian; `make deb` builds the program first.
    Deb {
        /// The lvmd of the tests instead, in two revisions, in target/debian-test; `cargo build` comes first.
        #[arg(long)]
        debug: bool,
    },
    /// Build a release with checksums, in target/dist; `make dist` builds the programs first.
    Dist(dist::Options),
    /// Write the manifest for krew beside the archives of the plugin that `make dist` has made.
    Krew(krew::Options),
    /// Run the tests that are too long for each change, and longer random tests on real LVM, and print a summary.
    Soak {
        /// Layers to run, in the order given; all that have such tests without this.
        #[arg(value_enum)]
        layers: Vec<layers::Layer>,
    },
    /// Run the fuzz targets; what they find stays in out/fuzz.
    Fuzz {
        /// This target alone.
        #[arg(long)]
        only: Option<String>,
        /// Duration of each target, in seconds.
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Lint => lint::run_lint(),
        Command::Generate { check } => generate::run(check),
        Command::Test { layers } => layers::test(&layers),
        Command::Docs => book::build(),
        Command::Images(options) => images::run(&options),
        Command::Deb { debug } => deb::package(if debug { deb::Program::Debug } else { deb::Program::Release }),
        Command::Dist(options) => dist::run(&options),
        Command::Krew(options) => krew::run(&options),
        Command::Soak { layers } => layers::soak(&layers),
        Command::Fuzz { only, seconds } => fuzz::run_targets(only.as_deref(), seconds),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
