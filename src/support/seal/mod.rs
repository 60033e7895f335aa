//! Secrets that are kept in the database, sealed with a master key that is not in it.
//!
//! XChaCha20-Poly1305 with a random nonce of 24 bytes. What a secret is for, whose it is and which row it stands in go in as
//! associated data, so that a row that is copied to another place cannot be opened there. The id of the master key stands beside
//! the ciphertext, so that several keys can be in use while they are changed. Must not know the database, nor what the secrets
//! are.

mod keyfile;
mod master;
mod vault;

pub use master::{MasterKey, Unusable};
pub use vault::{MasterKeys, Vault};

use super::random::NoRandomness;

/// The place that a secret is sealed for. It opens nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// What it is for.
    pub purpose: &'static str,
    /// Whose it is; `None` if it is the server's.
    pub owner: Option<&'a str>,
    /// The row.
    pub record: &'a str,
}

impl Place<'_> {
    /// The same bytes for the same place only: each part with its length before it.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // No id is empty, so an empty owner is nobody's.
        for part in ["capstan.v1", self.purpose, self.owner.unwrap_or_default(), self.record] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

/// A sealed secret, as it stands in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The master key.
    pub key_id: String,
    /// Nonce and ciphertext, base64.
    pub data: String,
}

/// Why a secret could not be sealed or opened. Never says anything of the secret.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// Nothing to seal with.
    #[error("there is no master key to seal a secret with; {0}")]
    NoKey(String),
    /// Sealed with a key that is not here.
    #[error("sealed with the master key {key_id}, which is not here; {way_out}")]
    UnknownKey {
        /// The key.
        key_id: String,
        /// What to do.
        way_out: String,
    },
    /// Not what was sealed, or not where it was sealed for.
    #[error("cannot be opened with the master key {key_id}: it was damaged, or moved here from another row; give the secret anew")]
    Damaged {
        /// The key.
        key_id: String,
    },
    /// The file of keys.
    #[error("the file of master keys {path} cannot be used: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why, and the way out.
        reason: String,
    },
    /// No randomness.
    #[error("the operating system gives no random bytes")]
    NoRandomness(#[from] NoRandomness),
}
