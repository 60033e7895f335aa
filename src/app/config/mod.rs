//! Settings, by priority: flags, environment, `capstan.toml`, defaults.
//!
//! Owns the loader, a pure function of the environment, the file's text and the flags. Must not know the parts that use a setting.
//! An error names the key and its source.

mod check;
mod check_values;
mod effective;
mod environment;
mod error;
mod file_variables;
mod load;
mod reference;
mod settings;
mod show;

pub use effective::effective;
pub use environment::{Environment, is_quoted};
pub use error::ConfigError;
pub use load::{Flag, Loaded, Source, Sources, check_variables, load, read_file};
pub use reference::reference;
pub use settings::*;
pub use show::show;
