//! The commands of the command line, one file each.

pub(super) mod cleanup;
pub(super) mod doctor;
pub(super) mod healthcheck;
pub(super) mod keys;
pub(super) mod migrate;
pub(super) mod output;
pub(super) mod serve;
pub(super) mod users;
