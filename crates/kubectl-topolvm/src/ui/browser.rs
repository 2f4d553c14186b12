//! Opens an address in the browser of this machine.

use std::process::{Command, Stdio};

/// Programs that open an address, of which a machine has one.
const PROGRAMS: [&str; 4] = ["xdg-open", "open", "wslview", "sensible-browser"];

/// Opens an address, and returns whether a program could be started that does so.
#[expect(clippy::disallowed_methods, reason = "only these programs know the browser of the user")]
pub(super) fn open(url: &str) -> bool {
    let start = |program: &str| {
        let mut command = Command::new(program);
        command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().is_ok()
    };
    PROGRAMS.iter().any(|program| start(program))
}
