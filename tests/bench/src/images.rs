//! Measures the size of the container image that `make images` builds, and of the programs in it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use images::Product;
use testbed::image::{Compression, write_archive};
use testbed::topolvm::TopolvmSpec;

use crate::figure::Figure;

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 1] = ["images."];

const GOAL_MIB: f64 = 60.0;
const PROGRAMS: [(&str, &str); 4] = [
    ("lvmd", "images.program_mib.lvmd"),
    ("topolvm-controller", "images.program_mib.topolvm-controller"),
    ("topolvm-node", "images.program_mib.topolvm-node"),
    ("topolvm-scheduler", "images.program_mib.topolvm-scheduler"),
];

/// Builds the image of the programs in this program's directory, with its archive in `directory`, and measures their
/// sizes.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let Product { image, contents, .. } = Product::build(&TopolvmSpec::nodes(0)?.programs, "bench")?;
    let archive = directory.join("image.tar");
    write_archive(&archive, &[image], Compression::Gzip)?;
    let size = fs::metadata(&archive).with_context(|| format!("read the size of {}", archive.display()))?.len();
    let figure = |name, bytes, goal| Figure { name, value: mebibytes(bytes), unit: "MiB", goal };
    let unpacked = contents.iter().map(|(_, size)| size).sum();
    let mut figures = vec![
        figure("images.mib", usize::try_from(size)?, GOAL_MIB),
        figure("images.unpacked_mib", unpacked, f64::INFINITY),
    ];
    for (program, name) in PROGRAMS {
        let size = contents.iter().find(|(path, _)| path == program).map(|(_, size)| *size);
        figures.push(figure(name, size.with_context(|| format!("{program} is not in the image"))?, f64::INFINITY));
    }
    Ok(figures)
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "sizes of files are exact in a float")]
fn mebibytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
