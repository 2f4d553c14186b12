//! Signals that end a program (INT, TERM, HUP): after the first one the program cleans up, the second one ends it at
//! once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit status of a shell for a program that Ctrl-C ended.
const STATUS: i32 = 130;

/// Set by the first signal. Signal handlers belong to the whole process, and so does this.
static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Handles INT, TERM and HUP from now on: the first one sets a flag instead of ending the program.
pub(crate) fn watch() -> Result<()> {
    let requested = Arc::new(AtomicBool::new(false));
    if REQUESTED.set(Arc::clone(&requested)).is_err() {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the second signal finds the flag that the first one set.
        flag::register_conditional_shutdown(signal, STATUS, Arc::clone(&requested)).context("watch for Ctrl-C")?;
        flag::register(signal, Arc::clone(&requested)).context("watch for Ctrl-C")?;
    }
    Ok(())
}

/// Returns true when a signal has come since [`watch`].
pub(crate) fn is_requested() -> bool {
    REQUESTED.get().is_some_and(|requested| requested.load(Ordering::Relaxed))
}
