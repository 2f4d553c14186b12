//! The node agent's program.

fn main() -> std::process::ExitCode {
    topolvm_runtime::main::<topolvm_node::Args>()
}
