//! The door of `kubectl-topolvm`.

fn main() -> std::process::ExitCode {
    kubectl_topolvm::main()
}
