//! Encryption at rest: secrets in the database, encrypted with a master key that is not in it.
//!
//! XChaCha20-Poly1305 with a random nonce of 24 bytes. Purpose, owner and row are associated data, so that a row that is copied to
//! another place cannot be decrypted there. The id of the master key is stored with the ciphertext, so that several keys can be in use
//! during a rotation. Must not know the database or the meaning of a secret.

mod keyfile;
mod master;
mod vault;

pub use master::{MasterKey, Unusable};
pub use vault::{MasterKeys, Vault};

use super::random::NoRandomness;

/// The place of a secret, which is its associated data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    pub purpose: &'static str,
    /// `None` if the secret belongs to the server.
    pub owner: Option<&'a str>,
    /// The id of the row.
    pub record: &'a str,
}

impl Place<'_> {
    /// Returns bytes that are equal for equal places only, because each part has a length prefix.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // No id is empty, so an empty owner is the server.
        for part in ["capstan.v1", self.purpose, self.owner.unwrap_or_default(), self.record] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

/// An encrypted secret, as the database stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The id of the master key.
    pub key_id: String,
    /// Nonce and ciphertext, base64.
    pub data: String,
}

/// Contains no part of a secret.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("there is no master key to encrypt a secret with; {0}")]
    NoKey(String),
    #[error("sealed with the master key {key_id}, which is not here; {way_out}")]
    UnknownKey { key_id: String, way_out: String },
    #[error("cannot be opened with the master key {key_id}: it was damaged, or moved here from another row; give the secret anew")]
    Damaged { key_id: String },
    #[error("the file of master keys {path} cannot be used: {reason}")]
    File { path: String, reason: String },
    #[error("the operating system gives no random bytes")]
    NoRandomness(#[from] NoRandomness),
}
