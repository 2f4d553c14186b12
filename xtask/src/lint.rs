//! Everything that can be said about the tree without running it.

mod code_blocks;
mod crate_sizes;
mod cycles;
mod dependencies;
mod doc_comments;
mod documented;
mod files;
mod finding;
mod impl_blocks;
mod places;
mod rules;
mod source;
mod words;

use std::process::Command;
use std::time::Instant;

use testbed::assets;

use crate::tools::{cargo, cargo_deny, repository, run};
use crate::{book, generate};

/// One check: its name and what it does.
type Step = (&'static str, fn() -> anyhow::Result<()>);

/// The checks, cheap ones first.
const STEPS: [Step; 11] = [
    ("format", || {
        run(&mut cargo(&["fmt", "--all", "--check"]))?;
        run(&mut cargo(&["fmt", "--manifest-path", FUZZ, "--check"]))
    }),
    ("rules of the code", rules::check),
    ("dependencies between packages", dependencies::check),
    ("generated files", || generate::run(true)),
    ("workflows and scripts", || {
        let workflows = ["ci", "release", "soak"].map(|name| format!(".github/workflows/{name}.yaml"));
        // What is on the machine by chance must not decide
        let alone = ["-shellcheck=", "-pyflakes="];
        run(Command::new(assets::actionlint()?).current_dir(repository()).args(alone).args(workflows))?;
        run(Command::new(assets::shellcheck()?).current_dir(repository()).args(SCRIPTS))
    }),
    ("book and its links", || book::build_and_check().map(drop)),
    ("licences and dependency rules", || {
        deny(&["--log-level", "error", "check", "bans", "licenses", "sources"])?;
        deny(&["--log-level", "error", "--manifest-path", FUZZ, "check", "licenses", "sources"])
    }),
    ("what small programs link", check_small_programs),
    // Warnings are errors here and only here, so that a new compiler does not break the builds of users
    ("clippy", || {
        run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-Dwarnings"]))
    }),
    ("fuzz targets", || {
        // The libraries are those of the product, built already.
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), Into::into);
        run(cargo(&["clippy", "--manifest-path", FUZZ, "--locked", "--quiet"])
            .arg("--target-dir")
            .arg(target)
            .args(["--", "-Dwarnings"]))
    }),
    ("documentation", || {
        run(cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"])
            .env("RUSTDOCFLAGS", "-Dwarnings"))
    }),
];

/// Scripts that people and CI start.
const SCRIPTS: [&str; 3] = [".ci/run", "examples/test.sh", "xtask/prerequisites"];

/// A workspace of its own.
const FUZZ: &str = "fuzz/Cargo.toml";

fn deny(arguments: &[&str]) -> anyhow::Result<()> {
    let mut deny = Command::new(cargo_deny()?);
    deny.current_dir(repository());
    run(deny.args(arguments))
}

/// Checks that lvmd, which uses no API server, does not link its client.
fn check_small_programs() -> anyhow::Result<()> {
    let tree =
        cargo(&["tree", "--locked", "--quiet", "--edges=normal", "--prefix=none", "--package", "lvmd"]).output()?;
    anyhow::ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8_lossy(&tree.stdout);
    for unwanted in ["kube-client", "rustls"] {
        let linked = tree.lines().any(|line| line.starts_with(&format!("{unwanted} ")));
        anyhow::ensure!(!linked, "lvmd links {unwanted}; see `cargo tree -p lvmd -e normal -i {unwanted}`");
    }
    Ok(())
}

/// The times of all checks, and those that failed.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Seconds and name of each check.
    pub(crate) times: Vec<(f64, String)>,
    pub(crate) failed: Vec<&'static str>,
}

/// Runs all checks, also after one has failed.
pub(crate) fn run_all() -> Outcome {
    let mut outcome = Outcome::default();
    for (name, check) in STEPS {
        println!("lint: {name}");
        let start = Instant::now();
        let result = check();
        outcome.times.push((start.elapsed().as_secs_f64(), name.to_owned()));
        if let Err(error) = result {
            eprintln!("lint: {name}: {error:#}");
            outcome.failed.push(name);
        }
    }
    outcome
}

/// `cargo xtask lint`.
pub(crate) fn run_lint() -> anyhow::Result<()> {
    let Outcome { failed, .. } = run_all();
    anyhow::ensure!(failed.is_empty(), "lint failed: {}", failed.join(", "));
    println!("lint: all clean");
    Ok(())
}
