//! Settings: flags over environment over `capstan.toml` over defaults.
//!
//! The loader is a pure function of its inputs: the environment, the file's text and the flags come in as values. An unknown
//! key is an error that names the key and where it came from.

mod check;
mod environment;
mod error;
mod load;
mod settings;
mod show;
mod values;
mod variables;

pub use environment::{Environment, is_quoted};
pub use error::ConfigError;
pub use load::{Flag, Loaded, Source, Sources, check_variables, load, read_file};
pub use settings::*;
pub use show::show;
