//! Converts content outside of the fields of an event stream into events.
//!
//! Older llama.cpp servers report errors in a field `error:`. Gemini and gateways write an error inside an answer as plain JSON
//! over several lines. The event parser ignores both, and an answer without its error may look complete.

use bytes::Bytes;
use serde::de::IgnoredAny;

use crate::provider::stream::Shape;

/// Converts errors outside of the event format into events.
#[derive(Debug, Default)]
pub(in crate::provider) struct UnframedErrorFilter(Line);

/// The state of the current line.
#[derive(Debug)]
enum Line {
    /// This many bytes of the line have arrived, and all of them match [`ERROR`].
    Begun(usize),
    /// A field, or unknown content, which passes unchanged.
    Field,
    /// Inside a document outside of any field.
    Document(Document),
    /// A document ended in this line, and another one may follow.
    Between,
    /// The rest of the line is dropped.
    Rest,
}

impl Default for Line {
    fn default() -> Self {
        Self::Begun(0)
    }
}

const ERROR: &[u8] = b"error:";

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

impl UnframedErrorFilter {
    /// Returns the bytes with unframed content as events. An incomplete document is buffered, up to the limit of an event.
    pub(in crate::provider) fn convert(&mut self, bytes: Bytes) -> Bytes {
        if !self.may_need_change(&bytes) {
            match bytes.last() {
                Some(last) if is_end(*last) => self.0 = Line::Begun(0),
                Some(_) => self.0 = Line::Field,
                None => {}
            }
            return bytes;
        }
        let mut out = Vec::with_capacity(bytes.len() + 32);
        let mut rest = bytes.as_ref();
        while let Some((&byte, after)) = rest.split_first() {
            match &mut self.0 {
                Line::Begun(0) if matches!(byte, b'{' | b'[') => self.0 = Line::Document(Document::default()),
                Line::Begun(matched_bytes) if ERROR.get(*matched_bytes) == Some(&byte) => {
                    *matched_bytes += 1;
                    rest = after;
                }
                Line::Begun(matched_bytes) => {
                    match *matched_bytes == ERROR.len() {
                        true => out.extend_from_slice(b"event: error\ndata:"),
                        false => out.extend_from_slice(&ERROR[..*matched_bytes]),
                    }
                    self.0 = Line::Field;
                }
                Line::Between => match byte {
                    b'{' | b'[' => self.0 = Line::Document(Document::default()),
                    b',' | b' ' | b'\t' => rest = after,
                    _ => self.0 = Line::Rest,
                },
                Line::Field | Line::Rest => {
                    let end = rest.iter().position(|byte| is_end(*byte));
                    let (line, after) = rest.split_at(end.map_or(rest.len(), |at| at + 1));
                    out.extend_from_slice(if let Line::Rest = self.0 { &line[end.unwrap_or(line.len())..] } else { line });
                    if end.is_some() {
                        self.0 = Line::Begun(0);
                    }
                    rest = after;
                }
                // It began like a document and continues as an event.
                Line::Document(document) if document.ends_before(byte) => self.0 = Line::Begun(0),
                Line::Document(document) => {
                    if document.push(byte) {
                        self.0 = if document.write(&mut out) { Line::Between } else { Line::Rest };
                    }
                    rest = after;
                }
            }
        }
        out.into()
    }

    /// Returns whether the bytes may contain unframed content, which is rare.
    fn may_need_change(&self, bytes: &[u8]) -> bool {
        let begins = |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b'e' | b'{' | b'['));
        match &self.0 {
            Line::Begun(0) if begins(bytes.first()) => true,
            Line::Begun(0) | Line::Field => bytes.windows(2).any(|pair| is_end(pair[0]) && begins(pair.get(1))),
            Line::Begun(_) | Line::Document(_) | Line::Between | Line::Rest => true,
        }
    }
}

/// JSON outside of any field, as far as it has arrived.
#[derive(Debug, Default)]
struct Document {
    json: Vec<u8>,
    shape: Shape,
}

impl Document {
    /// Returns whether no line of JSON begins with this byte.
    fn ends_before(&self, byte: u8) -> bool {
        let within = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_digit() || b"{}[],\"-tfn".contains(&byte);
        self.json.last().is_some_and(|last| is_end(*last)) && !within(byte)
    }

    /// Adds a byte. Returns whether the document is complete.
    fn push(&mut self, byte: u8) -> bool {
        self.shape.feed(&[byte]);
        self.json.push(byte);
        self.shape.is_complete
    }

    /// Writes the document as an event of one line, if it is JSON. Returns whether it is.
    fn write(&mut self, out: &mut Vec<u8>) -> bool {
        if serde_json::from_slice::<IgnoredAny>(&self.json).is_err() {
            return false;
        }
        self.json.iter_mut().filter(|byte| is_end(**byte)).for_each(|byte| *byte = b' ');
        // The previous event may lack its end, and the first line feed may complete a line end that began with a CR.
        out.extend_from_slice(b"\n\ndata: ");
        out.append(&mut self.json);
        out.extend_from_slice(b"\n\n");
        true
    }
}
