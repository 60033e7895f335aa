//! Encryption at rest: secrets in the database, encrypted with a master key that is not in it.
//!
//! Uses XChaCha20-Poly1305 with a random nonce of 24 bytes. Purpose, owner and row are associated data, so that a row that is copied to
//! another place cannot be decrypted there. The id of the master key is stored with the ciphertext, because several keys are in use during
//! a rotation. Must not know the database or the meaning of a secret.

mod key_file;
mod master_key;
mod master_keys;

pub use master_key::{MasterKey, Unusable};
pub use master_keys::{MasterKeys, Vault};

use super::random::NoRandomness;

/// The associated data of a secret: where it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssociatedData<'a> {
    pub purpose: &'static str,
    /// `None` if the secret belongs to the server.
    pub owner: Option<&'a str>,
    /// The id of the row.
    pub record: &'a str,
}

impl AssociatedData<'_> {
    /// Returns the associated data as bytes. Each part has a length prefix, so that different parts never have equal bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // An empty owner means the server, since no owner's id is empty.
        for part in ["capstan.v1", self.purpose, self.owner.unwrap_or_default(), self.record] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

/// An encrypted secret, as the database stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncryptedSecret {
    /// The id of the master key.
    pub key_id: String,
    /// Nonce and ciphertext, base64.
    pub data: String,
}

/// An encryption error, whose text contains no part of a secret.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    #[error("there is no master key to encrypt a secret with; {0}")]
    NoKey(String),
    #[error("encrypted with the master key {key_id}, which this process does not have; {way_out}")]
    UnknownKey { key_id: String, way_out: String },
    #[error(
        "cannot be decrypted with the master key {key_id}: it is damaged, or was copied from another row; set the secret again"
    )]
    Damaged { key_id: String },
    #[error("the file of master keys {path} cannot be used: {reason}")]
    File { path: String, reason: String },
    #[error("the operating system provides no random bytes")]
    NoRandomness(#[from] NoRandomness),
}
