//! Files that people upload, for messages to refer to.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::FileId;
use super::message::ToolContent;

/// Base64 as it is written; providers are stricter, and get it as they want it.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent).with_decode_allow_trailing_bits(true),
);

/// A file that was uploaded. Its bytes and its text are kept apart from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredFile {
    /// Its id.
    pub id: FileId,
    /// The name that it was given.
    pub name: String,
    /// What its bytes say that it is.
    pub media_type: String,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    /// Characters of the text that was found in it; absent for pictures, and where there is none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text_chars: Option<u64>,
    /// Bytes of that text in UTF-8.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text_bytes: Option<u64>,
    /// Whether it has more text than that, which models do not get to read.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub text_cut: bool,
    /// When it was uploaded, RFC 3339.
    pub created_at: String,
}

impl StoredFile {
    /// Whether it is a picture.
    #[must_use]
    pub fn is_picture(&self) -> bool {
        self.media_type.starts_with("image/")
    }
}

/// The media type of a picture that models see, by its first bytes.
#[must_use]
pub fn picture_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Why a picture is none after all, though it begins like one: every provider would refuse it, in each turn of its conversation from then
/// on.
#[must_use]
pub fn picture_fault(bytes: &[u8]) -> Option<&'static str> {
    if !imagesize::blob_size(bytes).is_ok_and(|size| size.width > 0 && size.height > 0) {
        return Some("the picture is damaged: it does not say how large it is");
    }
    is_cut_off(bytes).then_some("the picture is damaged: its end is missing")
}

/// The bytes behind base64, with or without its padding.
#[must_use]
pub fn decoded(base64: &str) -> Option<Vec<u8>> {
    LENIENT.decode(base64).ok()
}

/// The media type of a picture that models can be shown, as its bytes say it, and its base64 as providers want it. `None` if it is no such
/// picture, or not whole: providers refuse all of a request for it, and it would be in every request that follows.
#[must_use]
pub fn whole_picture(base64: &str) -> Option<(&'static str, String)> {
    let bytes = decoded(base64)?;
    let media_type = picture_type(&bytes).filter(|_| picture_fault(&bytes).is_none())?;
    Some((media_type, STANDARD.encode(bytes)))
}

/// A picture that a tool has answered with, or a text that names it where models cannot be shown it.
#[must_use]
pub fn tool_picture(claimed: &str, base64: &str) -> ToolContent {
    match whole_picture(base64) {
        Some((media_type, data)) => ToolContent::Image { media_type: media_type.to_owned(), data },
        None => {
            let claimed = if claimed.is_empty() { "unknown type" } else { claimed };
            let bytes = base64.trim_end_matches('=').len() * 3 / 4;
            let words = "cannot be shown, it is no PNG, JPEG, GIF or WebP that is whole";
            ToolContent::text(format!("[picture, {claimed}, {bytes} bytes: {words}]"))
        }
    }
}

/// What stands behind the header of a JPEG's first scan: the mark of its end is looked for there, since the segments before may hold a whole
/// small picture. From where on they cannot be followed, all of the rest; empty if one of them is broken off.
/// <https://www.w3.org/Graphics/JPEG/itu-t81.pdf>, B.1.1.
fn jpeg_scans(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        rest = match rest {
            // Any number of 0xff may stand before a marker.
            [0xff, again @ ..] if again.starts_with(&[0xff]) => again,
            [0xff, 0xda, scans @ ..] => return scans,
            [0xff, _, high, low, ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                rest.get(2 + length..).unwrap_or_default()
            }
            _ => return rest,
        };
    }
}

/// Whether a picture lacks the mark of its end, or is shorter than it says: it was broken off. Of a GIF that cannot be told.
fn is_cut_off(bytes: &[u8]) -> bool {
    let has = |mark: &[u8]| bytes.windows(mark.len()).rev().any(|at| at == mark);
    match bytes {
        [0x89, ..] => !has(b"IEND"),
        [0xff, ..] => !jpeg_scans(bytes).windows(2).any(|at| at == [0xff, 0xd9]),
        [b'R', b'I', b'F', b'F', a, b, c, d, ..] => (bytes.len() as u64) < u64::from(u32::from_le_bytes([*a, *b, *c, *d])) + 8,
        _ => false,
    }
}

/// The text of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileText {
    /// The words.
    pub words: String,
    /// Whether there would be more.
    pub is_cut: bool,
}

/// What was found out about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    /// Its media type.
    pub media_type: String,
    /// Its text, if it has any that can be read.
    pub text: Option<FileText>,
}
