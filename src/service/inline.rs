//! Files that come in messages themselves, in `data:` URLs.
//!
//! Clients send them where they have never heard of uploads. They become uploaded files, before the message is stored: found out to be
//! what they are by the same reading, within the same limits, expanded in requests only. So a message never holds what no provider takes.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::files::shown_name;
use super::{Error, Result, Service};
use crate::domain::file::{StoredFile, decoded};
use crate::domain::ids::UserId;
use crate::domain::message::{FilePart, Part};
use crate::support::json;

/// The file of a part, if it comes with it.
pub(super) fn inline(part: &Part) -> Option<&FilePart> {
    match part {
        Part::File(file) if file.url.as_deref().is_some_and(|url| url.starts_with("data:")) => Some(file),
        Part::File(_) | Part::Image(_) | Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::ToolResult(_) => None,
    }
}

/// A name for a file that comes without one. Its end says which sort of text it is.
fn name_of(media_type: &str) -> &'static str {
    match media_type {
        "text/markdown" => "file.md",
        "text/csv" => "file.csv",
        "application/json" => "file.json",
        _ => "file",
    }
}

impl Service {
    /// Looks whether there are more files than a conversation may have, before any of them is read.
    pub(super) fn bound_files<'p>(&self, parts: impl Iterator<Item = &'p Part>, pointer: &str) -> Result<()> {
        // Of those that come with the parts, the name makes another file of the same bytes.
        let one = |part: &'p Part| {
            let uploaded = part.file_id().map(|id| (id, None));
            uploaded.or_else(|| inline(part).and_then(|file| Some((file.url.as_deref()?, file.name.as_deref()))))
        };
        let files: BTreeSet<(&str, Option<&str>)> = parts.filter_map(one).collect();
        let most = self.files.limits.max_per_conversation;
        if files.len() > most as usize {
            let words = format!("the conversation would have {} files; it may have {most}", files.len());
            return Err(Error::field(pointer, words));
        }
        Ok(())
    }

    /// Puts references to uploaded files in the place of those that come with the parts. The same one again is not stored again, so that
    /// a request that is repeated means the same files.
    pub(super) async fn keep_inline(&self, owner: &UserId, parts: &mut [Part], pointer: &str) -> Result<()> {
        for (index, part) in parts.iter_mut().enumerate() {
            let Some(file) = inline(part) else { continue };
            let pointer = format!("{pointer}/{index}/url");
            let kept = self.keep_one(owner, file, &pointer).await?;
            let is_picture = kept.is_picture();
            let file = FilePart {
                file_id: Some(kept.id.as_str().to_owned()),
                name: Some(kept.name),
                text_chars: kept.text_chars,
                text_bytes: kept.text_bytes,
                ..FilePart::of(file.id.clone(), kept.media_type)
            };
            *part = if is_picture { Part::Image(file) } else { Part::File(file) };
        }
        Ok(())
    }

    async fn keep_one(&self, owner: &UserId, file: &FilePart, pointer: &str) -> Result<StoredFile> {
        let data = file.url.as_deref().and_then(|url| url.split_once(";base64,")).map(|(_, data)| data);
        let Some(bytes) = data.and_then(decoded).map(Bytes::from) else {
            let words =
                "must hold the file in base64, as in data:application/pdf;base64,JVBERi0...; or upload it with POST /api/v1/files";
            return Err(Error::file(pointer, words));
        };
        let most = self.files.limits.max_bytes;
        if bytes.len() > most {
            return Err(Error::file(pointer, format!("holds a file of {} bytes; at most {most} are accepted", bytes.len())));
        }
        let name = shown_name(file.name.as_deref().unwrap_or_else(|| name_of(&file.media_type)));
        let sha256 = json::hash_bytes(&bytes);
        if let Some(kept) = self.store.file_of(owner, &sha256, &name).await? {
            return Ok(kept);
        }
        self.keep_file(owner, name, sha256, bytes, |why| Error::file(pointer, why)).await
    }
}
