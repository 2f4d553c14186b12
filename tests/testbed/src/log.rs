//! The last lines of a log, for error messages about a process that has died.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes at the end of a log that are read.
const WINDOW: u64 = 16 * 1024;

/// Returns the last lines of a log, after its name; the error when it cannot be read, so that it can always be part of
/// a message.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = match window(path) {
        Ok(text) => text,
        Err(e) => return format!("{}: {e}", path.display()),
    };
    let mut last: Vec<&str> = text.lines().rev().take(lines).collect();
    last.reverse();
    format!("{}:\n{}", path.display(), last.join("\n"))
}

fn window(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(WINDOW)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines_under_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.log");
        std::fs::write(&path, "1\n2\n3\n").unwrap();
        assert_eq!(tail(&path, 2), format!("{}:\n2\n3", path.display()));
        assert!(tail(&directory.path().join("none.log"), 2).contains("none.log"));
    }
}
