//! Settings: flags over environment over `capstan.toml` over defaults.
//!
//! The loader is a pure function of the environment, the file's text and the flags. An error names the key and its source.

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
