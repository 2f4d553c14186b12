//! The documentation as a book: a website of the Markdown files of the repository, whose links are checked.
//!
//! The files stay where they are, because their links also work where the repository is browsed. For mdbook, which
//! takes one directory, they are copied with all that they link to into a directory of the same layout.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::tools::{self, repository, run};

/// Files and directories that pages of the book are in or link to.
const SOURCES: [&str; 13] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
    "docs",
    "examples",
    "scheduler-config",
    "systemd",
    "deploy",
    "charts",
    "proto",
    "images/debian-packages",
];

const CONFIGURATION: &str = r#"[book]
title = "TopoLVM in Rust"
description = "Fast local volumes for Kubernetes, cut from LVM volume groups"
language = "en"

# Not the one that gives README.md another name than that under which other pages link to it
[build]
use-default-preprocessors = false

[preprocessor.links]

[output.html]
preferred-dark-theme = "navy"

[output.html.fold]
enable = true
"#;

/// Builds the book into `target/book/html` and checks its links.
pub(crate) fn build() -> anyhow::Result<()> {
    let html = build_and_check()?;
    println!("{}", html.join("index.html").display());
    Ok(())
}

/// Builds the book and checks its links; returns the directory of the website.
pub(crate) fn build_and_check() -> anyhow::Result<PathBuf> {
    let directory = tools::target_directory()?.join("book");
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let source = directory.join("src");
    fs::create_dir_all(&source)?;
    let mut copy = Command::new("cp");
    run(copy.current_dir(repository()).args(["--recursive", "--parents"]).args(SOURCES).arg(&source))?;
    let summary = summary()?;
    fs::write(source.join("SUMMARY.md"), &summary)?;
    fs::remove_file(source.join("docs/SUMMARY.md"))?;
    fs::write(directory.join("book.toml"), CONFIGURATION)?;
    check_completeness(&source, &summary)?;

    let html = directory.join("html");
    run(Command::new(tools::mdbook()?).args(["build", "--dest-dir"]).arg(&html).arg(&directory))?;
    let mut lychee = Command::new(tools::lychee()?);
    lychee.args(["--offline", "--include-fragments", "--no-progress", "--quiet", "--root-dir"]).arg(&html);
    // What mdbook writes by itself: one page with all, whose links are relative to others, and a page for errors
    lychee.args(["--exclude-path", "print.html", "--exclude-path", "404.html", "--exclude-path", "toc.html"]);
    run(lychee.arg(&html)).context("a link of the documentation leads nowhere")?;
    Ok(html)
}

/// Returns the table of contents, whose paths are relative to `docs`, with paths relative to the repository.
fn summary() -> anyhow::Result<String> {
    let path = repository().join("docs/SUMMARY.md");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Ok(text.replace("](", "](docs/").replace("](docs/../", "]("))
}

/// Fails if a page is not in the table of contents, where no reader would find it.
fn check_completeness(source: &Path, summary: &str) -> anyhow::Result<()> {
    let mut missing = BTreeSet::new();
    for entry in fs::read_dir(source.join("docs"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|extension| extension == "md") && !summary.contains(&format!("](docs/{name})"))
        {
            missing.insert(name.into_owned());
        }
    }
    ensure!(missing.is_empty(), "docs/SUMMARY.md does not name {missing:?}");
    Ok(())
}
