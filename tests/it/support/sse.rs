//! A client of event streams that keeps what it got, byte for byte, and can be cut anywhere.

use std::time::Duration;

use serde_json::Value;

/// One event as it stood on the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The `id:` field.
    pub id: Option<String>,
    /// The `event:` field.
    pub event: Option<String>,
    /// The `data:` field.
    pub data: String,
}

impl Frame {
    /// The data as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }

    /// The type in the envelope.
    pub fn kind(&self) -> String {
        self.json()["type"].as_str().unwrap().to_owned()
    }
}

/// An open stream.
pub struct SseStream {
    response: reqwest::Response,
    pending: Vec<u8>,
    /// The `retry:` field, once seen.
    pub retry: Option<String>,
    /// Whether a comment came.
    pub commented: bool,
}

/// How reading went on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An event.
    Frame(Frame),
    /// The server ended the stream.
    End,
    /// The connection broke.
    Broken,
}

impl SseStream {
    /// Reads from an answer, which must be an event stream.
    pub fn new(response: reqwest::Response) -> Self {
        assert_eq!(response.status(), 200, "no stream at {}", response.url());
        let kind = response.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        Self { response, pending: Vec::new(), retry: None, commented: false }
    }

    /// The next event. Panics if nothing comes for 30 seconds.
    pub async fn next(&mut self) -> Next {
        loop {
            if let Some(block) = self.take_block() {
                if let Some(frame) = self.read_block(&block) {
                    return Next::Frame(frame);
                }
                continue;
            }
            match super::wait::within("the next event", Duration::from_secs(30), self.response.chunk()).await {
                Ok(Some(bytes)) => self.pending.extend_from_slice(&bytes),
                Ok(None) => return Next::End,
                Err(_) => return Next::Broken,
            }
        }
    }

    /// Everything to the end of the stream; panics if it breaks.
    pub async fn all(mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Next::Frame(frame) => frames.push(frame),
                Next::End => return frames,
                Next::Broken => panic!("the stream broke after {frames:#?}"),
            }
        }
    }

    /// Stored events up to and including the first of type `kind`.
    pub async fn until_kind(&mut self, kind: &str) -> Vec<Frame> {
        let mut frames = Vec::new();
        loop {
            match self.next().await {
                Next::Frame(frame) if frame.id.is_some() => {
                    let found = frame.kind() == kind;
                    frames.push(frame);
                    if found {
                        return frames;
                    }
                }
                Next::Frame(_) => {}
                Next::End | Next::Broken => panic!("no {kind} came, only {:?}", kinds(&frames)),
            }
        }
    }

    fn take_block(&mut self) -> Option<String> {
        let at = self.pending.windows(2).position(|pair| pair == b"\n\n")?;
        let block: Vec<u8> = self.pending.drain(..at + 2).collect();
        Some(String::from_utf8(block).unwrap())
    }

    fn read_block(&mut self, block: &str) -> Option<Frame> {
        let mut frame = Frame { id: None, event: None, data: String::new() };
        let mut has_data = false;
        for line in block.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" => self.commented = true,
                "id" => frame.id = Some(value.to_owned()),
                "event" => frame.event = Some(value.to_owned()),
                "retry" => self.retry = Some(value.to_owned()),
                "data" => {
                    if has_data {
                        frame.data.push('\n');
                    }
                    frame.data.push_str(value);
                    has_data = true;
                }
                other => panic!("no such field in an event stream: {other:?}"),
            }
        }
        has_data.then_some(frame)
    }
}

/// The types of events, in order.
pub fn kinds(frames: &[Frame]) -> Vec<String> {
    frames.iter().map(Frame::kind).collect()
}

/// Only what is stored: pings and the end have no id.
pub fn stored(frames: &[Frame]) -> Vec<Frame> {
    frames.iter().filter(|frame| frame.id.is_some()).cloned().collect()
}

/// The first event of a type.
pub fn find<'a>(frames: &'a [Frame], kind: &str) -> Option<&'a Frame> {
    frames.iter().find(|frame| frame.kind() == kind)
}
