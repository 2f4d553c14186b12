//! The parts of the user documentation that say what the code knows: flags, configuration keys and metrics.

mod alerts;
mod flags;
mod metrics;

use anyhow::{Context as _, ensure};
use clap::CommandFactory as _;
use lvmd_config::Key;

use crate::tools::repository;

const PLUGIN: &str = "docs/kubectl-topolvm.md";

/// The documents with generated parts, as they should be.
pub(super) fn files() -> anyhow::Result<Vec<(&'static str, String)>> {
    let lvmd = [("flags", flags::of(lvmd::Args::command())), ("metrics", metrics::of_lvmd()?)];
    let lvmd_config = [
        ("keys of the file", keys(Key::FILE)),
        ("keys of a device class", keys(Key::DEVICE_CLASS)),
        ("keys of a thin pool", keys(Key::THIN_POOL)),
        ("keys of an lvcreate-option-class", keys(Key::OPTION_CLASS)),
        ("keys of a disk group", keys(Key::DISK_GROUP)),
        ("keys of the thin pool of a disk group", keys(Key::GROUP_POOL)),
    ];
    Ok(vec![
        ("docs/lvmd.md", document("docs/lvmd.md", &lvmd)?),
        ("docs/lvmd-config.md", document("docs/lvmd-config.md", &lvmd_config)?),
        flags_only("docs/topolvm-node.md", topolvm_node::Args::command())?,
        flags_only("docs/topolvm-controller.md", topolvm_controller::Args::command())?,
        flags_only("docs/topolvm-scheduler.md", topolvm_scheduler::Args::command())?,
        (alerts::PAGE, document(alerts::PAGE, &[("alerts", alerts::of_rules()?)])?),
        (PLUGIN, document(PLUGIN, &[("flags", flags::of_commands(kubectl_topolvm::Args::command()))])?),
    ])
}

fn flags_only(path: &'static str, program: clap::Command) -> anyhow::Result<(&'static str, String)> {
    Ok((path, document(path, &[("flags", flags::of(program))])?))
}

/// A document in which what stands between the markers of each part is replaced.
fn document(path: &str, parts: &[(&str, String)]) -> anyhow::Result<String> {
    let mut text = std::fs::read_to_string(repository().join(path)).with_context(|| format!("cannot read {path}"))?;
    for (name, content) in parts {
        text = replaced(&text, name, content).with_context(|| format!("{path}: part {name:?}"))?;
    }
    let markers = text.matches("<!-- generated: ").count();
    ensure!(markers == parts.len(), "{path} has {markers} generated parts, and not {}", parts.len());
    Ok(text)
}

fn replaced(text: &str, name: &str, content: &str) -> anyhow::Result<String> {
    let (begin, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end of generated part -->");
    let (before, rest) = text.split_once(&begin).with_context(|| format!("no line {}", begin.trim_end()))?;
    let (_, after) = rest.split_once(end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

fn keys(keys: &[Key]) -> String {
    let rows = keys.iter().map(|key| [code(key.name), code(key.default), key.meaning.to_owned()]);
    table(["Key", "Default", "Meaning"], rows)
}

/// A Markdown table.
fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| {
        let cell = |cell: &String| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") };
        format!("|{}\n", cells.iter().map(cell).collect::<String>())
    };
    let mut text = format!("{}|{}\n", line(&head.map(str::to_owned)), "---|".repeat(N));
    for row in rows {
        text += &line(&row.map(|cell| cell.replace('|', "\\|").replace('\n', " ")));
    }
    text
}

/// A word as it is typed; nothing stays nothing.
fn code(word: &str) -> String {
    if word.is_empty() { String::new() } else { format!("`{word}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_markers_is_replaced() {
        let text = "a\n<!-- generated: x -->\nold\n<!-- end of generated part -->\nb\n";
        let expected = "a\n<!-- generated: x -->\nnew\n<!-- end of generated part -->\nb\n";
        assert_eq!(replaced(text, "x", "new\n").unwrap(), expected);
        assert!(replaced(text, "y", "new\n").is_err());
    }

    #[test]
    fn a_table_keeps_its_columns() {
        let rows = [["`a|b`".to_owned(), String::new()]];
        assert_eq!(table(["Key", "Meaning"], rows), "| Key | Meaning |\n|---|---|\n| `a\\|b` | |\n");
    }
}
