//! Master keys: 32 bytes, and the texts that they are read from.

use std::fmt;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::AssociatedData;

pub(super) const NONCE_BYTES: usize = 24;

const MIN_TEXT_CHARS: usize = 16;

/// The error of a text that is too short for a master key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a master key is 32 random bytes as base64 or hexadecimal, or another random text of at least 16 characters; \
     `openssl rand -base64 32` makes one"
)]
pub struct Unusable;

#[derive(Clone)]
pub struct MasterKey {
    id: String,
    bytes: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MasterKey").field(&self.id).finish()
    }
}

impl MasterKey {
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        let hash = Sha256::new().chain_update("capstan master key id\n").chain_update(bytes.as_slice()).finalize();
        let id = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        Self { id, bytes }
    }

    /// Reads 32 bytes in hexadecimal or base64 of either alphabet. Any other text is hashed with a prefix, so that the key is only as
    /// unpredictable as the text.
    pub fn from_text(text: &str) -> Result<Self, Unusable> {
        let text = text.trim();
        if text.chars().count() < MIN_TEXT_CHARS {
            return Err(Unusable);
        }
        let known = from_hex(text).or_else(|| from_base64(text));
        Ok(Self::new(known.unwrap_or_else(|| derived(text))))
    }

    /// Returns the id of the key, which does not reveal the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn to_hex(&self) -> Zeroizing<String> {
        Zeroizing::new(self.bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns nonce and ciphertext; `None` for a text that is too long for the cipher.
    pub(super) fn encrypt(&self, associated_data: &AssociatedData<'_>, plain: &[u8], nonce: [u8; NONCE_BYTES]) -> Option<Vec<u8>> {
        let cipher = XChaCha20Poly1305::new_from_slice(self.bytes.as_slice()).ok()?;
        let encrypted = cipher.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: &associated_data.bytes() }).ok()?;
        Some([nonce.as_slice(), &encrypted].concat())
    }

    /// Decrypts; `None` if the data was not encrypted with this key and this associated data.
    pub(super) fn decrypt(&self, associated_data: &AssociatedData<'_>, data: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (nonce, encrypted) = data.split_first_chunk::<NONCE_BYTES>()?;
        let cipher = XChaCha20Poly1305::new_from_slice(self.bytes.as_slice()).ok()?;
        cipher.decrypt(&XNonce::from(*nonce), Payload { msg: encrypted, aad: &associated_data.bytes() }).ok().map(Zeroizing::new)
    }
}

fn from_hex(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn from_base64(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    [&alphabet::STANDARD, &alphabet::URL_SAFE].into_iter().find_map(|alphabet| {
        let decoded = Zeroizing::new(GeneralPurpose::new(alphabet, lenient).decode(text).ok()?);
        <[u8; 32]>::try_from(decoded.as_slice()).ok().map(Zeroizing::new)
    })
}

fn derived(text: &str) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(Sha256::new().chain_update("capstan master key\n").chain_update(text).finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: AssociatedData<'static> = AssociatedData { purpose: "test", owner: Some("user_1"), record: "row_1" };

    #[test]
    fn keys_may_be_written_in_several_ways() {
        let hex = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        let base64 = "ABEiM0RVZneImaq7zN3u/wARIjNEVWZ3iJmqu8zd7v8=";
        let url_safe = " ABEiM0RVZneImaq7zN3u_wARIjNEVWZ3iJmqu8zd7v8\n";
        let ids: Vec<_> = [hex, base64, url_safe].map(|text| MasterKey::from_text(text).unwrap().id().to_owned()).into();
        assert!(ids.iter().all(|id| *id == ids[0] && id.len() == 12), "{ids:?}");
        // A hexadecimal text of another length is hashed.
        let other = MasterKey::from_text(&hex[..62]).unwrap();
        assert_ne!(other.id(), ids[0]);
        assert_eq!(MasterKey::from_text("fifteen letters").unwrap_err(), Unusable);
        assert_eq!(MasterKey::from_text(&MasterKey::from_text(hex).unwrap().to_hex()).unwrap().id(), ids[0]);
        assert_eq!(format!("{:?}", MasterKey::from_text(hex).unwrap()), format!("MasterKey({:?})", ids[0]));
    }

    #[test]
    fn secret_decrypts_only_with_its_associated_data() {
        let key = MasterKey::from_text("a text that is long enough").unwrap();
        let encrypted = key.encrypt(&PLACE, b"sk-secret", [7; NONCE_BYTES]).unwrap();
        assert!(!encrypted.windows(6).any(|window| window == b"secret"));
        assert_eq!(key.decrypt(&PLACE, &encrypted).unwrap().as_slice(), b"sk-secret");
        let elsewhere = [
            AssociatedData { purpose: "other", ..PLACE },
            AssociatedData { owner: None, ..PLACE },
            AssociatedData { owner: Some("user_2"), ..PLACE },
            AssociatedData { record: "row_2", ..PLACE },
            // The concatenated parts are equal, the parts are not.
            AssociatedData { owner: Some("user_1row"), record: "_1", ..PLACE },
        ];
        for associated_data in elsewhere {
            assert!(key.decrypt(&associated_data, &encrypted).is_none(), "{associated_data:?}");
        }
        for index in 0..encrypted.len() {
            let mut damaged = encrypted.clone();
            damaged[index] ^= 1;
            assert!(key.decrypt(&PLACE, &damaged).is_none(), "byte {index}");
            assert!(key.decrypt(&PLACE, &encrypted[..index]).is_none(), "cut at {index}");
        }
        assert!(MasterKey::from_text("another text of some length").unwrap().decrypt(&PLACE, &encrypted).is_none());
    }

    /// The test vector of the draft that defines the cipher: <https://datatracker.ietf.org/doc/html/draft-irtf-cfrg-xchacha-03>, section
    /// A.3.1. It proves that the library implements that cipher.
    #[test]
    fn the_cipher_is_the_one_of_the_draft() {
        let key: [u8; 32] = std::array::from_fn(|n| 0x80 + u8::try_from(n).unwrap());
        let nonce: [u8; 24] = std::array::from_fn(|n| 0x40 + u8::try_from(n).unwrap());
        let aad = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let plain =
            b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.";
        let cipher = XChaCha20Poly1305::new_from_slice(&key).unwrap();
        let encrypted = cipher.encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: &aad }).unwrap();
        assert_eq!(&encrypted[..4], [0xbd, 0x6d, 0x17, 0x9d]);
        assert_eq!(
            &encrypted[encrypted.len() - 16..],
            [0xc0, 0x87, 0x59, 0x24, 0xc1, 0xc7, 0x98, 0x79, 0x47, 0xde, 0xaf, 0xd8, 0x78, 0x0a, 0xcf, 0x49]
        );
    }
}
