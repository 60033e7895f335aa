//! Stored files, to which messages and tool results refer.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::FileId;
use crate::support::text;

/// Accepts base64 without padding. Providers are stricter, and receive canonical base64.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent).with_decode_allow_trailing_bits(true),
);

/// The limit of a file name, in characters. A longer name is cut.
pub const MAX_FILE_NAME: usize = 255;

pub fn content_url(id: &FileId) -> String {
    format!("/api/v1/files/{id}/content")
}

named_enum! {
    /// The origin of a stored file.
    #[derive(Default)]
    pub enum FileOrigin {
        /// Its owner uploaded it, or sent it with a message as a file.
        #[default]
        Upload = "upload",
        /// A picture inside a message, or binary content that a tool returned.
        Content = "content",
    }
}

named_enum! {
    /// The purpose for which a client has uploaded a file, with the values of OpenAI's API. It only filters lists.
    #[derive(Default)]
    pub enum FilePurpose {
        Assistants = "assistants",
        AssistantsOutput = "assistants_output",
        Batch = "batch",
        BatchOutput = "batch_output",
        FineTune = "fine-tune",
        FineTuneResults = "fine-tune-results",
        Vision = "vision",
        #[default]
        UserData = "user_data",
        Evals = "evals",
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLimits {
    pub max_bytes: usize,
    /// Limit of uploaded files per owner.
    pub max_per_owner: u32,
    /// Limit of files per owner that were not uploaded: pictures in messages, and binary content of tool results.
    pub max_content_per_owner: u32,
    /// Limit of uploaded files in the messages of one conversation.
    pub max_per_conversation: u32,
    pub max_bytes_per_call: usize,
    /// Limit of characters of a file's text that models read.
    pub text_chars: usize,
}

impl FileLimits {
    pub fn per_owner(&self, origin: FileOrigin) -> u32 {
        match origin {
            FileOrigin::Upload => self.max_per_owner,
            FileOrigin::Content => self.max_content_per_owner,
        }
    }
}

impl Default for FileLimits {
    fn default() -> Self {
        Self {
            max_bytes: 20 * 1024 * 1024,
            max_per_owner: 1_000,
            max_content_per_owner: 10_000,
            max_per_conversation: 5,
            max_bytes_per_call: 32 * 1024 * 1024,
            text_chars: 100_000,
        }
    }
}

/// Returns a name that is safe to display and store: the last part of a path, without control and direction characters.
pub fn shown_name(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}');
    let clean: String = last.chars().filter(|c| !c.is_control() && !turns(*c)).collect();
    let clean = text::prefix_chars(clean.trim(), MAX_FILE_NAME);
    if clean.is_empty() { "file".to_owned() } else { text::storable(clean).into_owned() }
}

/// Returns a name for a file without one. Its extension identifies the type of a text.
pub fn default_name(media_type: &str) -> String {
    let stem = match media_type.split('/').next() {
        Some("image") => "picture",
        Some("audio") => "audio",
        Some("video") => "video",
        Some(_) | None => "file",
    };
    let end = match media_type {
        "text/markdown" => "md",
        "text/csv" => "csv",
        "text/html" => "html",
        "application/json" => "json",
        "application/pdf" => "pdf",
        "application/zip" => "zip",
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "audio/wav" | "audio/x-wav" => "wav",
        "audio/mpeg" => "mp3",
        _ => return stem.to_owned(),
    };
    format!("{stem}.{end}")
}

/// Returns a media type without its parameters, or `application/octet-stream` if the text is not a media type.
pub fn media_type(claimed: &str) -> String {
    let essence = claimed.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if is_media_type(&essence) { essence } else { "application/octet-stream".to_owned() }
}

/// Returns whether a text is a media type such as `image/png`, without parameters.
pub fn is_media_type(text: &str) -> bool {
    let token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&b));
    text.len() <= 127 && text.split_once('/').is_some_and(|(kind, subtype)| token(kind) && token(subtype))
}

pub fn is_text_type(media_type: &str) -> bool {
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || kind.ends_with("+xml")
        || kind.ends_with("+yaml")
        || matches!(
            kind.as_str(),
            "application/json"
                | "application/xml"
                | "application/javascript"
                | "application/x-ndjson"
                | "application/yaml"
                | "application/x-yaml"
                | "application/toml"
                | "application/sql"
        )
}

/// The PDF header may start within this many bytes: some programs write other data before it.
const PDF_MARK_WITHIN: usize = 1024;

/// Returns whether bytes may be a PDF. A PDF is never treated as text, even if it is written in ASCII.
pub fn may_be_pdf(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(PDF_MARK_WITHIN)].windows(5).any(|at| at == b"%PDF-")
}

/// Returns whether texts and terminals use a character.
fn is_text_char(c: char) -> bool {
    !c.is_ascii_control() || matches!(c, '\t' | '\n' | '\r' | '\u{8}' | '\u{c}' | '\u{1b}')
}

/// Returns the bytes as UTF-8 text, unless they contain control characters that texts and terminals do not use.
pub fn utf8_text(bytes: &[u8]) -> Option<&str> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    std::str::from_utf8(bytes).ok().filter(|words| words.chars().all(is_text_char))
}

/// Returns the bytes as UTF-16 text, if they begin with a byte order mark and hold characters of texts only.
pub fn utf16_text(bytes: &[u8]) -> Option<String> {
    if !matches!(bytes, [0xff, 0xfe, ..] | [0xfe, 0xff, ..]) || !bytes.len().is_multiple_of(2) {
        return None;
    }
    let (text, _) = other_text(bytes);
    text.chars().all(|c| is_text_char(c) && c != char::REPLACEMENT_CHARACTER).then_some(text)
}

/// Returns whether bytes look like text in an encoding of one byte for each character, such as Windows-1252: most of them are
/// ASCII, and none is a control character.
pub fn may_be_other_text(bytes: &[u8]) -> bool {
    let ascii = bytes.iter().filter(|byte| byte.is_ascii()).count();
    ascii * 2 > bytes.len() && bytes.iter().all(|byte| is_text_char(char::from(*byte)))
}

/// Decodes text that is not UTF-8: UTF-16 with a byte order mark, or else Latin-1. Spreadsheet programs write both. The second
/// value is the encoding's name.
pub fn other_text(bytes: &[u8]) -> (String, &'static str) {
    let units =
        |from: fn([u8; 2]) -> u16| -> Vec<u16> { bytes[2..].chunks_exact(2).map(|pair| from([pair[0], pair[1]])).collect() };
    match bytes {
        [0xff, 0xfe, ..] => (String::from_utf16_lossy(&units(u16::from_le_bytes)), "UTF-16"),
        [0xfe, 0xff, ..] => (String::from_utf16_lossy(&units(u16::from_be_bytes)), "UTF-16"),
        _ => (bytes.iter().copied().map(char::from).collect(), "Latin-1"),
    }
}

/// A stored file. Its bytes and its extracted text are stored separately.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredFile {
    /// The id of the file.
    pub id: FileId,
    /// The name of the file.
    pub name: String,
    /// The media type, detected from the bytes.
    pub media_type: String,
    /// The size in bytes.
    pub size: u64,
    /// SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
    /// Number of characters of the extracted text. Absent for pictures and for files without text.
    pub text_chars: Option<u64>,
    /// Number of bytes of the extracted text in UTF-8.
    pub text_bytes: Option<u64>,
    /// Whether the file has more text than was extracted. Models do not read the rest.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub text_cut: bool,
    /// How the file came into the store.
    #[serde(default)]
    pub origin: FileOrigin,
    #[serde(skip)]
    pub purpose: FilePurpose,
    /// When the file was stored, RFC 3339.
    pub created_at: String,
}

impl StoredFile {
    /// Returns whether models can be shown it as a picture.
    pub fn is_picture(&self) -> bool {
        is_picture_type(&self.media_type)
    }
}

pub(in crate::domain) fn is_picture_type(media_type: &str) -> bool {
    matches!(media_type, "image/png" | "image/jpeg" | "image/gif" | "image/webp")
}

/// Returns the media type of a picture that models can be shown, by its first bytes.
pub fn picture_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Returns why a picture is damaged. Providers would refuse every later request of its conversation.
pub fn picture_fault(bytes: &[u8]) -> Option<&'static str> {
    if !imagesize::blob_size(bytes).is_ok_and(|size| size.width > 0 && size.height > 0) {
        return Some("the picture is damaged: its header has no size");
    }
    is_cut_off(bytes).then_some("the picture is damaged: its end is missing")
}

pub fn decoded(base64: &str) -> Option<Vec<u8>> {
    LENIENT.decode(base64).ok()
}

/// Returns media type and canonical base64 of a picture that models accept. `None` for another type, and for a damaged picture:
/// providers refuse every request that contains it.
pub fn whole_picture(base64: &str) -> Option<(&'static str, String)> {
    let bytes = decoded(base64)?;
    let media_type = picture_type(&bytes).filter(|_| picture_fault(&bytes).is_none())?;
    Some((media_type, STANDARD.encode(bytes)))
}

/// Returns the bytes after the header of a JPEG's first scan, which contain the end mark. Segments before it may contain a complete
/// thumbnail. Returns the remaining bytes if the segments are malformed, and nothing if one is incomplete.
/// <https://www.w3.org/Graphics/JPEG/itu-t81.pdf>, B.1.1.
fn jpeg_scans(bytes: &[u8]) -> &[u8] {
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        rest = match rest {
            // Fill bytes: a marker may follow any number of 0xff.
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

/// Returns whether a picture lacks its end mark, or is shorter than it declares. Cannot detect this for GIF.
fn is_cut_off(bytes: &[u8]) -> bool {
    let has = |mark: &[u8]| bytes.windows(mark.len()).rev().any(|at| at == mark);
    match bytes {
        [0x89, ..] => !has(b"IEND"),
        [0xff, ..] => !jpeg_scans(bytes).windows(2).any(|at| at == [0xff, 0xd9]),
        [b'R', b'I', b'F', b'F', a, b, c, d, ..] => (bytes.len() as u64) < u64::from(u32::from_le_bytes([*a, *b, *c, *d])) + 8,
        _ => false,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileText {
    pub words: String,
    /// Whether the file has more text.
    pub is_cut: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFacts {
    pub media_type: String,
    pub text: Option<FileText>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_last_part_of_a_path_without_control_characters() {
        for (name, shown) in [
            ("a.pdf", "a.pdf"),
            ("../../etc/passwd", "passwd"),
            (r"C:\\a\\b.docx", "b.docx"),
            ("a\r\nb: c", "ab: c"),
            (" \u{7} ", "file"),
            ("", "file"),
            ("größe.txt", "größe.txt"),
            ("cv\u{202e}gpj.exe", "cvgpj.exe"),
        ] {
            assert_eq!(shown_name(name), shown);
        }
        assert_eq!(shown_name(&"é".repeat(300)).chars().count(), MAX_FILE_NAME);
    }

    #[test]
    fn text_is_distinguished_from_binary() {
        assert_eq!(utf8_text("\u{feff}größe\n".as_bytes()), Some("größe\n"));
        assert_eq!((utf8_text(b"a\0b"), utf8_text(b"\xff")), (None, None));
        assert_eq!(other_text(b"gr\xf6\xdfe"), ("größe".to_owned(), "Latin-1"));
        assert_eq!(other_text(b"\xff\xfea\0b\0"), ("ab".to_owned(), "UTF-16"));
        assert_eq!(other_text(b"\xfe\xff\0a\0b"), ("ab".to_owned(), "UTF-16"));
        assert_eq!(other_text(b"\xff"), ("\u{ff}".to_owned(), "Latin-1"));
    }

    #[test]
    fn media_types_lose_their_parameters() {
        assert_eq!(media_type("Text/CSV; charset=utf-8"), "text/csv");
        for claimed in ["", "png", "a/b/c", "a/<script>", "image/"] {
            assert_eq!(media_type(claimed), "application/octet-stream", "{claimed}");
        }
        assert!(is_text_type("image/svg+xml") && is_text_type("application/json; charset=x") && !is_text_type("application/zip"));
    }
}
