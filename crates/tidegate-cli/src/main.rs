//! The binary `tidegate`.

fn main() -> std::process::ExitCode {
    tidegate_cli::main()
}
