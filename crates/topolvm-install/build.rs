//! Lists the files of `deploy/manifests` for `src/install/manifests.rs`, which has them in the program.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

const MANIFESTS: &str = "../../deploy/manifests";

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by variables where it is")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed={MANIFESTS}");
    // Not env!: of two checkouts with one target directory, the other one may be gone
    let package = env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
    let root = Path::new(&package).join(MANIFESTS).canonicalize()?;
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = "&[\n".to_owned();
    for file in &files {
        let path = file.strip_prefix(&root)?.to_str().ok_or("the path of a manifest is not UTF-8")?;
        // Resolved by the compiler: the table may be that of another checkout with the same target directory
        let from_package = format!("/{MANIFESTS}/{path}");
        writeln!(table, "({path:?}, include_str!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {from_package:?}))),")?;
    }
    let directory = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&directory).join("manifests.rs"), table + "]\n")?;
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
