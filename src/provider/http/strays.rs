//! Turns content of an event stream that stands in no field into events.
//!
//! Older llama.cpp servers report errors in a field `error:`. Gemini and gateways write an error within an answer as bare JSON over
//! several lines. No parser reads either, and an answer without its error may look whole.

use bytes::Bytes;
use serde::de::IgnoredAny;

use crate::provider::stream::Shape;

#[derive(Debug, Default)]
pub(in crate::provider) struct Strays(Line);

/// The state of the current line.
#[derive(Debug)]
enum Line {
    /// So many of its bytes came, all of them of [`ERROR`].
    Begun(usize),
    /// A field, or unknown content, which passes unchanged.
    Field,
    /// Within a document outside of any field.
    Document(Document),
    /// Such a document ended in this line, and another may follow.
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

impl Strays {
    /// Returns the bytes with stray content as events. A document that is not whole is held back, within the limit of an event.
    pub(in crate::provider) fn mend(&mut self, bytes: Bytes) -> Bytes {
        if !self.may_hold_any(&bytes) {
            match bytes.last() {
                Some(last) if is_end(*last) => self.0 = Line::Begun(0),
                Some(_) => self.0 = Line::Field,
                None => {}
            }
            return bytes;
        }
        let mut mended = Vec::with_capacity(bytes.len() + 32);
        let mut rest = bytes.as_ref();
        while let Some((&byte, after)) = rest.split_first() {
            match &mut self.0 {
                Line::Begun(0) if matches!(byte, b'{' | b'[') => self.0 = Line::Document(Document::default()),
                Line::Begun(seen) if ERROR.get(*seen) == Some(&byte) => {
                    *seen += 1;
                    rest = after;
                }
                Line::Begun(seen) => {
                    match *seen == ERROR.len() {
                        true => mended.extend_from_slice(b"event: error\ndata:"),
                        false => mended.extend_from_slice(&ERROR[..*seen]),
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
                    mended.extend_from_slice(if let Line::Rest = self.0 { &line[end.unwrap_or(line.len())..] } else { line });
                    if end.is_some() {
                        self.0 = Line::Begun(0);
                    }
                    rest = after;
                }
                // It began like a document and goes on as an event.
                Line::Document(document) if document.ends_before(byte) => self.0 = Line::Begun(0),
                Line::Document(document) => {
                    if document.is_whole_with(byte) {
                        self.0 = if document.write(&mut mended) { Line::Between } else { Line::Rest };
                    }
                    rest = after;
                }
            }
        }
        mended.into()
    }

    /// Returns whether the bytes may hold strays, which is rare.
    fn may_hold_any(&self, bytes: &[u8]) -> bool {
        let begins = |byte: Option<&u8>| byte.is_some_and(|byte| matches!(byte, b'e' | b'{' | b'['));
        match &self.0 {
            Line::Begun(0) if begins(bytes.first()) => true,
            Line::Begun(0) | Line::Field => bytes.windows(2).any(|pair| is_end(pair[0]) && begins(pair.get(1))),
            Line::Begun(_) | Line::Document(_) | Line::Between | Line::Rest => true,
        }
    }
}

/// JSON that stands in no field, as far as it came.
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

    /// Takes in a byte. Returns whether it is the last one.
    fn is_whole_with(&mut self, byte: u8) -> bool {
        self.shape.feed(&[byte]);
        self.json.push(byte);
        self.shape.complete
    }

    /// Writes the document as an event of one line, if it is JSON. Returns whether it is.
    fn write(&mut self, mended: &mut Vec<u8>) -> bool {
        if serde_json::from_slice::<IgnoredAny>(&self.json).is_err() {
            return false;
        }
        self.json.iter_mut().filter(|byte| is_end(**byte)).for_each(|byte| *byte = b' ');
        // The event before it may lack its end, and the first of the two may be half of a line end that a CR has begun.
        mended.extend_from_slice(b"\n\ndata: ");
        mended.append(&mut self.json);
        mended.extend_from_slice(b"\n\n");
        true
    }
}
