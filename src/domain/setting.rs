//! The settings in force, as administrators see them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;

named_enum! {
    /// The layer that a value comes from.
    pub enum SettingSource {
        /// No layer sets the value.
        Default = "default",
        /// The configuration file.
        File = "file",
        /// A variable of the environment.
        Environment = "environment",
        /// A flag of the command line.
        Flag = "flag",
    }
}

/// A setting in force, read at the start of the process.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Setting {
    /// The key, such as `worker.slots`.
    pub name: String,
    /// The section of the configuration file.
    pub section: String,
    /// The value, with secrets replaced by `[redacted]`. Absent if nothing is set.
    pub value: Option<Value>,
    /// The layer that the value comes from.
    pub source: SettingSource,
    /// The file, variable or flag that sets the value.
    pub origin: Option<String>,
    /// The meaning of the setting in one line.
    pub help: Option<String>,
}
