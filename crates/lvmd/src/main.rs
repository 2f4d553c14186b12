//! The door of lvmd.

fn main() -> std::process::ExitCode {
    topolvm_runtime::main::<lvmd::Args>()
}
