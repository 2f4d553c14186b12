//! Durations of tests, downloads and builds, as lines of output for `cargo xtask test`.

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Begins the line with a time: seconds and name follow.
pub const TIME: &str = "time: ";

/// Lines for what this program has finished.
static TIMES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records that something has taken until now.
pub(crate) fn record(name: &str, start: Instant) {
    let line = format!("{TIME}{:.1} {name}", start.elapsed().as_secs_f64());
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

/// Prints what was recorded since the last call.
pub(crate) fn print() {
    for line in TIMES.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // A failed write is ignored
        drop(writeln!(io::stdout(), "{line}"));
    }
}
