//! What providers write into an event stream beside its fields, made fields of it.
//!
//! Older servers of llama.cpp report errors in a field `error:`. Gemini writes an error that comes within an answer as bare JSON
//! over several lines, and gateways do the same with errors of their own. No parser knows either, and an answer whose error is
//! overlooked may look whole.

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::stream::Shape;

/// Mends the bytes of a stream, however they are cut.
#[derive(Debug, Default)]
pub(super) struct Strays(Line);

/// How far the line is that is being read.
#[derive(Debug)]
enum Line {
    /// So many of its bytes came, all of them of [`ERROR`].
    Begun(usize),
    /// It is a field, or nothing to anybody.
    Field,
    /// It stands within a document outside of any field.
    Document(Document),
    /// Such a document ended in it, and another may follow.
    Between,
    /// The rest of it is nothing to anybody.
    Rest,
}

impl Default for Line {
    fn default() -> Self {
        Self::Begun(0)
    }
}

/// The field of llama.cpp.
const ERROR: &[u8] = b"error:";

fn is_end(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

impl Strays {
    /// The same bytes with strays as events. Holds back a document that is not whole: as many bytes as one event may have.
    pub(super) fn mend(&mut self, bytes: Bytes) -> Bytes {
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
                // What begins like a document and goes on as an event is none.
                Line::Document(document) if document.ends_before(byte) => self.0 = Line::Begun(0),
                Line::Document(document) => {
                    if document.is_whole_with(byte) {
                        self.0 = if document.say(&mut mended) { Line::Between } else { Line::Rest };
                    }
                    rest = after;
                }
            }
        }
        mended.into()
    }

    /// Whether there is anything to do, which there nearly never is.
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
    /// Whether this byte begins a line as none begins within JSON.
    fn ends_before(&self, byte: u8) -> bool {
        let within = |byte: u8| byte.is_ascii_whitespace() || byte.is_ascii_digit() || b"{}[],\"-tfn".contains(&byte);
        self.json.last().is_some_and(|last| is_end(*last)) && !within(byte)
    }

    /// Takes in a byte; whether it is the last one.
    fn is_whole_with(&mut self, byte: u8) -> bool {
        self.shape.feed(&[byte]);
        self.json.push(byte);
        self.shape.is_complete()
    }

    /// Says it as an event of its own, in one line, if it is JSON; whether it is.
    fn say(&mut self, mended: &mut Vec<u8>) -> bool {
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
