//! The commands of the command line, one file each.
//!
//! Owns what each command prints. Must not know the command line, except for the flags of `secrets rotate`.

pub(super) mod cleanup;
pub(super) mod doctor;
pub(super) mod healthcheck;
pub(super) mod keys;
pub(super) mod migrate;
pub(super) mod output;
pub(super) mod rotate_secrets;
pub(super) mod serve;
pub(super) mod users;
