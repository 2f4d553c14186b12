//! The program topolvm-node.

fn main() -> std::process::ExitCode {
    topolvm_runtime::main::<topolvm_node::Args>()
}
