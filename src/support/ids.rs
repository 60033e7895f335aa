//! The source of new identifiers.
//!
//! An id on the wire is a prefix and a UUIDv7 in its 32-digit form (`run_0198...`). Time-ordered ids keep inserts at the
//! right-hand edge of every index.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub trait IdSource: Send + Sync {
    /// Returns the 32 hexadecimal digits of a new id, without a prefix.
    fn next(&self) -> String;
}

pub type SharedIds = Arc<dyn IdSource>;

/// Random, time-ordered ids.
#[derive(Debug, Default)]
pub struct UuidIds;

impl IdSource for UuidIds {
    fn next(&self) -> String {
        #[expect(clippy::disallowed_methods, reason = "this is the one place that makes ids")]
        let uuid = uuid::Uuid::now_v7();
        uuid.simple().to_string()
    }
}

/// Counting ids for tests: every run of a program creates the same ids.
#[derive(Debug, Default)]
pub struct SequentialIds(AtomicU64);

impl IdSource for SequentialIds {
    fn next(&self) -> String {
        let n = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        format!("{n:032x}")
    }
}
