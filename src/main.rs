//! The `capstan` program. Everything is in the library; `app::main` is where to begin reading.

fn main() -> std::process::ExitCode {
    capstan::app::main()
}
