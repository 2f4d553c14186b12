//! The door of `topolvm-controller`.

use std::process::ExitCode;

fn main() -> ExitCode {
    topolvm_runtime::main::<topolvm_controller::Args>()
}
