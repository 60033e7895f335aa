//! Files and pictures in `data:` URLs of messages, and binary content of results in imported conversations.
//!
//! They become stored files before the message is stored, so that a message and its events contain only references.

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::domain::conversation::file::{FileFacts, FileOrigin, FilePurpose, StoredFile, decoded, default_name, shown_name};
use crate::domain::conversation::message::{BinaryContent, FilePart, Part, ToolContent};
use crate::domain::ids::UserId;
use crate::service::{Error, Result, Service};
use crate::support::json;

const NOT_BASE64: &str =
    "must hold the file in base64, as in data:application/pdf;base64,JVBERi0...; or upload it with POST /api/v1/files";

pub(in crate::service) fn inline_file(part: &Part) -> Option<&FilePart> {
    match part {
        Part::File(file) if has_data(file) => Some(file),
        _ => None,
    }
}

fn has_data(file: &FilePart) -> bool {
    file.file_id.is_none() && file.url.as_deref().is_some_and(|url| url.starts_with("data:"))
}

fn bytes_of(file: &FilePart) -> Option<Bytes> {
    let (_, data) = file.url.as_deref()?.split_once(";base64,")?;
    decoded(data).map(Bytes::from)
}

impl Service {
    /// Refuses more uploaded files than a conversation may have, before any of them is read. The files of `content` do not count.
    pub(in crate::service) fn bound_files<'p>(
        &self,
        parts: impl Iterator<Item = &'p Part>,
        content: &BTreeSet<String>,
        pointer: &str,
    ) -> Result<()> {
        // Files in the parts count as different if their names differ, even with the same bytes.
        let one = |part: &'p Part| {
            let uploaded = part.file_id().filter(|id| !content.contains(*id)).map(|id| (id, None));
            uploaded.or_else(|| inline_file(part).and_then(|file| Some((file.url.as_deref()?, file.name.as_deref()))))
        };
        let files: BTreeSet<(&str, Option<&str>)> = parts.filter_map(one).collect();
        let most = self.files.limits.max_per_conversation;
        if files.len() > most as usize {
            let words = format!("the conversation would have {} files; it may have {most}", files.len());
            return Err(Error::field(pointer, words));
        }
        Ok(())
    }

    /// Stores files and pictures in the parts, and replaces them by references. An equal file is not stored again, so that a
    /// repeated request refers to the same files.
    pub(in crate::service) async fn keep_inline(&self, owner: &UserId, parts: &mut [Part], pointer: &str) -> Result<()> {
        for (index, part) in parts.iter_mut().enumerate() {
            let pointer = format!("{pointer}/{index}");
            match part {
                Part::File(file) if has_data(file) => {
                    let pointer = format!("{pointer}/url");
                    let bytes = bytes_of(file).ok_or_else(|| Error::file(&pointer, NOT_BASE64))?;
                    let described = (FileOrigin::Upload, &*file.media_type, file.name.as_deref());
                    let stored = self.keep_bytes(owner, described, bytes, &pointer).await?;
                    let file = FilePart::stored(file.id.clone(), &stored);
                    *part = if stored.is_picture() { Part::Image(file) } else { Part::File(file) };
                }
                Part::Image(picture) if has_data(picture) => {
                    let bytes = bytes_of(picture).unwrap_or_default();
                    let described = (FileOrigin::Content, &*picture.media_type, picture.name.as_deref());
                    let stored = self.keep_bytes(owner, described, bytes, &format!("{pointer}/url")).await?;
                    *picture = FilePart::stored(picture.id.clone(), &stored);
                }
                Part::ToolResult(result) => {
                    for (nth, content) in result.content.iter_mut().enumerate() {
                        let (ToolContent::Image(binary) | ToolContent::File(binary)) = content else { continue };
                        let Some(bytes) = binary.data.as_deref().and_then(decoded).map(Bytes::from) else { continue };
                        let described = (FileOrigin::Content, &*binary.media_type, binary.name.as_deref());
                        let pointer = format!("{pointer}/content/{nth}/data");
                        *binary = BinaryContent::stored(&self.keep_bytes(owner, described, bytes, &pointer).await?);
                    }
                }
                Part::Image(_) | Part::File(_) | Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) | Part::Source(_) => {}
            }
        }
        Ok(())
    }

    /// Stores the bytes of a part. The type of an upload is detected; that of other content is known.
    async fn keep_bytes(
        &self,
        owner: &UserId,
        (origin, media_type, name): (FileOrigin, &str, Option<&str>),
        bytes: Bytes,
        pointer: &str,
    ) -> Result<StoredFile> {
        let most = self.files.limits.max_bytes;
        if bytes.len() > most {
            return Err(Error::file(pointer, format!("holds a file of {} bytes; at most {most} are accepted", bytes.len())));
        }
        let name = name.map_or_else(|| default_name(media_type), shown_name);
        let sha256 = json::hash_bytes(&bytes);
        if let Some(stored) = self.store.file_of(owner, &sha256, &name).await? {
            return Ok(stored);
        }
        match origin {
            FileOrigin::Upload => {
                self.keep_file(owner, FilePurpose::default(), name, sha256, bytes, |why| Error::file(pointer, why)).await
            }
            FileOrigin::Content => {
                let facts = FileFacts { media_type: media_type.to_owned(), text: None };
                self.store_known(owner, (origin, FilePurpose::default()), name, sha256, &bytes, facts).await
            }
        }
    }
}
