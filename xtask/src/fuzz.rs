//! The fuzz targets: built with libFuzzer's instrumentation by the stable compiler, and run one after the other.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::tools::{cargo, repository, run};

/// Compiler flags of `cargo fuzz`, without the sanitizers that only the nightly compiler has: they look for mistakes of
/// unsafe code, of which there is none.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Named, so that the flags are not for build scripts.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// Seconds after which an input that is still running counts as a finding.
const TOO_LONG: u32 = 10;

/// Runs the targets, or the one of this name, for so many seconds each. What they find stays in `out/fuzz`.
pub(crate) fn run_targets(only: Option<&str>, seconds: u64) -> anyhow::Result<()> {
    let targets: Vec<String> = targets()?.into_iter().filter(|target| only.is_none_or(|only| only == target)).collect();
    ensure!(!targets.is_empty(), "no such fuzz target; there are {}", self::targets()?.join(", "));
    let build = repository().join("out/fuzz/build");
    run(cargo(&["build", "--release", "--locked", "--target", HOST, "--manifest-path", "fuzz/Cargo.toml"])
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", &build))?;
    for target in &targets {
        println!("\n=== {target}: {seconds} s");
        let found = repository().join("out/fuzz/corpus").join(target);
        fs::create_dir_all(&found).with_context(|| format!("create {}", found.display()))?;
        let mut command = Command::new(build.join(HOST).join("release").join(target));
        command.arg(&found).arg(repository().join("fuzz/corpus").join(target));
        command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={TOO_LONG}"));
        command.arg(format!("-artifact_prefix={}/out/fuzz/{target}-", repository().display()));
        run(command.args(["-print_final_stats=1", "-verbosity=0"]))
            .with_context(|| format!("{target} found something: its input is in out/fuzz/{target}-*"))?;
    }
    Ok(())
}

fn targets() -> anyhow::Result<Vec<String>> {
    let files = fs::read_dir(repository().join("fuzz/fuzz_targets"))?;
    let names = files.map(|file| Ok(file?.path().file_stem().map(PathBuf::from)));
    let names: anyhow::Result<Vec<_>> = names.collect();
    let mut names: Vec<_> = names?.into_iter().flatten().map(|name| name.display().to_string()).collect();
    names.sort();
    Ok(names)
}
