//! The Debian package of lvmd in a guest with systemd and udevd: an administrator's commands for the service, and their
//! effect on volumes. And topolvm-node, which limits the I/O of pods in the cgroups that systemd creates.
#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "in a test a panic is the right answer, real programs are what is tested, and rates are measured"
)]

mod io_limits;
mod node;
mod package;
mod sandbox;
mod unit;

use std::process::ExitCode;
use std::time::Duration;

use testbed::guest::GuestSpec;
use testbed::size::GIB;
use testbed::suite;

fn main() -> ExitCode {
    let tests = unit::TESTS.iter().chain(sandbox::TESTS).chain(io_limits::TESTS).chain(package::TESTS);
    let tests_in_guest = tests.map(|&(name, test)| suite::panicking_test(name, test));
    let timeout = Duration::from_mins(10);
    let spec = GuestSpec { disks: vec![GIB], timeout, systemd: true, ..GuestSpec::default() };
    suite::in_guest(spec, tests_in_guest.collect())
}
