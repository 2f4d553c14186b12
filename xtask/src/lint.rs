//! Everything that can be said about the tree without running it.

use std::process::Command;

use crate::generate;
use crate::tools::{cargo, cargo_deny, run};

/// One check: its name and what it does.
type Step = (&'static str, fn() -> anyhow::Result<()>);

/// The checks, cheap ones first.
const STEPS: [Step; 6] = [
    ("format", || run(&mut cargo(&["fmt", "--all", "--check"]))),
    ("generated files", || generate::run(true)),
    ("licences and dependency rules", || {
        let mut deny = Command::new(cargo_deny()?);
        deny.current_dir(crate::tools::repository());
        run(deny.args(["--log-level", "error", "check", "bans", "licenses", "sources"]))
    }),
    ("what small programs link", small_programs),
    // Warnings are errors here and only here, so that a new compiler does not break anybody's build
    ("clippy", || {
        run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-Dwarnings"]))
    }),
    ("documentation", || {
        run(cargo(&["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"])
            .env("RUSTDOCFLAGS", "-Dwarnings"))
    }),
];

/// lvmd and the extender run on every node or for every pod, and speak to no API server.
fn small_programs() -> anyhow::Result<()> {
    for program in ["lvmd", "topolvm-scheduler"] {
        let tree = cargo(&["tree", "--locked", "--quiet", "--edges=normal", "--prefix=none", "--package", program])
            .output()?;
        anyhow::ensure!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr));
        let tree = String::from_utf8_lossy(&tree.stdout);
        for unwanted in ["kube-client", "rustls"] {
            let linked = tree.lines().any(|line| line.starts_with(&format!("{unwanted} ")));
            anyhow::ensure!(
                !linked,
                "{program} links {unwanted}; see `cargo tree -p {program} -e normal -i {unwanted}`"
            );
        }
    }
    Ok(())
}

/// Runs all checks, also after one has failed.
pub(crate) fn run_all() -> (usize, Vec<&'static str>) {
    let mut failed = Vec::new();
    for (name, check) in STEPS {
        println!("lint: {name}");
        if let Err(error) = check() {
            eprintln!("lint: {name}: {error:#}");
            failed.push(name);
        }
    }
    (STEPS.len(), failed)
}

/// `cargo xtask lint`.
pub(crate) fn run_lint() -> anyhow::Result<()> {
    let (_, failed) = run_all();
    anyhow::ensure!(failed.is_empty(), "lint failed: {}", failed.join(", "));
    println!("lint: all clean");
    Ok(())
}
