//! Raises the limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files to the system's maximum: many systems start at 1,024, and each stream needs one.
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => tracing::debug!(before = current, now = maximum, "raised the limit of open files"),
        Err(error) => tracing::warn!(limit = current, %error, "the limit of open files cannot be raised"),
    }
}
