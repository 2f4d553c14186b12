//! Ctrl-C and friends: the first one is noticed and cleaned up after, the second one ends the program at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// A shell's status for a program that Ctrl-C ended.
const STATUS: i32 = 130;

/// Signal handlers belong to the whole process, and so does this.
static ASKED_TO_END: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Has INT, TERM and HUP noticed from now on instead of ending the program.
pub fn watch() -> Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    if ASKED_TO_END.set(Arc::clone(&asked)).is_err() {
        return Ok(());
    }
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the second signal finds the flag that the first one set.
        flag::register_conditional_shutdown(signal, STATUS, Arc::clone(&asked)).context("watch for Ctrl-C")?;
        flag::register(signal, Arc::clone(&asked)).context("watch for Ctrl-C")?;
    }
    Ok(())
}

/// Whether a signal has come since [`watch`].
pub fn asked_to_end() -> bool {
    ASKED_TO_END.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}
