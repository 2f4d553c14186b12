//! Entry point of topolvm-scheduler.

fn main() -> std::process::ExitCode {
    topolvm_runtime::main::<topolvm_scheduler::Args>()
}
