//! Bodies of requests as JSON text.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::domain::model::{ModelError, ModelErrorKind};

pub(in crate::provider) fn written(body: &impl Serialize) -> Result<Vec<u8>, ModelError> {
    serde_json::to_vec(body).map_err(|error| cannot_write(&error))
}

/// Serializes a part of a request body, which is inserted unchanged.
pub(in crate::provider) fn raw(part: &impl Serialize) -> Result<Box<RawValue>, ModelError> {
    to_raw_value(part).map_err(|error| cannot_write(&error))
}

fn cannot_write(error: &serde_json::Error) -> ModelError {
    ModelError::new(ModelErrorKind::InvalidRequest, &format!("the request cannot be serialized: {error}"))
}
