//! The entry points of the fuzzers and of the decoding bench, without a network. They decode bytes to events.
//!
//! Exists with the feature `fuzzing`, and in tests, which replay the seeds of the fuzzers. A check panics if a property is violated.

use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use serde_json::Value;

use crate::domain::model::{ModelError, ModelErrorKind, ModelEvent};
use crate::provider::http::ndjson::LineFrames;
use crate::provider::http::sse::sse_frames;
use crate::provider::http::sse::{ByteStream, Frames, Framing};
use crate::provider::http::timeouts::StreamLimits;
use crate::provider::request::schema::{self, schema_profiles};
use crate::provider::stream::{AnswerDecoder, Events, StreamAdapter};
use crate::provider::{anthropic, gemini, ollama, openai, responses};

/// A dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    ChatCompletions,
    Anthropic,
    Gemini,
    Responses,
    Ollama,
}

impl Wire {
    pub const ALL: [Self; 5] = [Self::ChatCompletions, Self::Anthropic, Self::Gemini, Self::Responses, Self::Ollama];

    /// Returns the name of the fuzz target, which is also the folder of its seeds.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Responses => "responses",
            Self::Ollama => "ollama",
        }
    }

    fn framing(self) -> Framing {
        if self == Self::Ollama { Framing::Lines } else { Framing::Events }
    }
}

/// The events of an answer, and its failure.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    pub events: Vec<ModelEvent>,
    pub failed: Option<ModelErrorKind>,
}

/// The sizes of the chunks, used cyclically: at least one, and none of them 0.
#[derive(Debug, Clone)]
pub struct Chunking(Vec<usize>);

impl Chunking {
    pub fn whole() -> Self {
        Self(vec![usize::MAX])
    }

    pub fn sizes(sizes: Vec<usize>) -> Self {
        Self(sizes)
    }

    /// Derives sizes from a fuzzer's bytes: often small ones, so that each position is a chunk boundary at some time.
    pub fn of(sizes: &[u8]) -> Self {
        let sizes: Vec<usize> =
            sizes.iter().map(|size| if *size < 200 { usize::from(*size % 8) + 1 } else { usize::from(*size) }).collect();
        if sizes.is_empty() { Self(vec![1]) } else { Self(sizes) }
    }

    fn cut(&self, bytes: &[u8]) -> ByteStream {
        let mut rest = Bytes::copy_from_slice(bytes);
        let mut sizes = self.0.clone().into_iter().cycle();
        Box::pin(stream::iter(std::iter::from_fn(move || {
            let size = sizes.next().filter(|_| !rest.is_empty())?;
            Some(Ok(rest.split_to(size.min(rest.len()))))
        })))
    }
}

fn frames_of(framing: Framing, bytes: ByteStream) -> Frames {
    match framing {
        Framing::Events => sse_frames(bytes),
        Framing::Lines => Box::pin(LineFrames::new(bytes)),
    }
}

/// Passes all items of a stream that never waits to a function.
fn each<T>(stream: impl Stream<Item = T>, take: impl FnMut(T)) {
    let mut stream = pin!(stream);
    std::iter::from_fn(|| stream.next().now_or_never().flatten()).for_each(take);
}

fn drained<T>(stream: impl Stream<Item = T>) -> Vec<T> {
    let mut items = Vec::new();
    each(stream, |item| items.push(item));
    items
}

/// Decodes a streamed answer event by event. Needs the context of a tokio runtime.
pub fn decode_each(wire: Wire, bytes: &[u8], chunking: &Chunking, take: impl FnMut(Result<ModelEvent, ModelError>)) {
    let frames = frames_of(wire.framing(), chunking.cut(bytes));
    match wire {
        Wire::ChatCompletions => each(Events::new(frames, openai::decoder(), limits()), take),
        Wire::Anthropic => each(Events::new(frames, anthropic::decoder(), limits()), take),
        Wire::Gemini => each(Events::new(frames, gemini::decoder(), limits()), take),
        Wire::Responses => each(Events::new(frames, responses::decoder(), limits()), take),
        Wire::Ollama => each(Events::new(frames, ollama::decoder(), limits()), take),
    }
}

/// Decodes a streamed answer. Needs the context of a tokio runtime.
pub fn decode(wire: Wire, bytes: &[u8], chunking: &Chunking) -> Said {
    let mut said = Said { events: Vec::new(), failed: None };
    decode_each(wire, bytes, chunking, |item| match item {
        Ok(event) => said.events.push(event),
        Err(error) => said.failed = Some(error.kind),
    });
    said
}

/// Decodes an answer in one piece.
pub fn decode_document(wire: Wire, bytes: &[u8]) -> Said {
    match wire {
        Wire::ChatCompletions => document(openai::decoder(), bytes),
        Wire::Anthropic => document(anthropic::decoder(), bytes),
        Wire::Gemini => document(gemini::decoder(), bytes),
        Wire::Responses => document(responses::decoder(), bytes),
        Wire::Ollama => document(ollama::decoder(), bytes),
    }
}

/// Returns the frames of a stream, for a bench of the parser alone.
pub fn payloads(wire: Wire, bytes: &[u8]) -> Vec<String> {
    let frames = frames_of(wire.framing(), Chunking::whole().cut(bytes));
    drained(frames).into_iter().filter_map(|frame| frame.ok().map(|frame| frame.data)).collect()
}

fn limits() -> StreamLimits {
    StreamLimits { after_finish: Duration::from_secs(3_600), ..StreamLimits::default() }
}

fn document(mut decoder: AnswerDecoder<impl StreamAdapter>, bytes: &[u8]) -> Said {
    let failed = decoder.document(bytes).err().map(|error| error.kind);
    Said { events: decoder.into_events().into(), failed }
}

/// Splits a fuzzer's bytes into chunk sizes and content.
fn split_input(data: &[u8]) -> (Chunking, &[u8]) {
    let (sizes, body) = data.split_at(data.len().min(4));
    (Chunking::of(sizes), body)
}

/// Checks that the frames do not depend on the chunks, and are no larger than their bytes.
pub fn check_frames(data: &[u8]) {
    let (chunking, body) = split_input(data);
    for framing in [Framing::Events, Framing::Lines] {
        let read = |chunking: &Chunking| -> Vec<Result<(Option<String>, String), ModelErrorKind>> {
            let items = drained(frames_of(framing, chunking.cut(body)));
            items.into_iter().map(|item| item.map(|frame| (frame.event, frame.data)).map_err(|error| error.kind)).collect()
        };
        let frames = read(&chunking);
        assert_eq!(frames, read(&Chunking::whole()), "{framing:?}: framing matters");
        let bytes: usize = frames.iter().flatten().map(|(event, data)| data.len() + event.as_ref().map_or(0, String::len)).sum();
        assert!(bytes <= body.len(), "{framing:?}: {bytes} bytes of {}", body.len());
    }
}

/// Checks an answer in a dialect, streamed and in one piece. Needs the context of a tokio runtime.
pub fn check_answer(wire: Wire, data: &[u8]) {
    let (chunking, body) = split_input(data);
    let streamed = decode(wire, body, &chunking);
    check_said(wire, body, &streamed);
    assert_eq!(streamed, decode(wire, body, &Chunking::whole()), "{wire:?}: framing matters");
    check_said(wire, body, &decode_document(wire, body));
}

fn check_said(wire: Wire, body: &[u8], said: &Said) {
    let ends = said.events.iter().filter(|event| matches!(event, ModelEvent::Finished(_))).count();
    let is_last = matches!(said.events.last(), Some(ModelEvent::Finished(_)));
    match said.failed {
        None => assert!(ends == 1 && is_last, "{wire:?}: an answer must end once: {said:?}"),
        Some(_) => assert!(ends == 0, "{wire:?}: a failed answer must not end: {said:?}"),
    }
    // Reserialized JSON may be somewhat longer.
    let size: usize = said.events.iter().map(size).sum();
    assert!(size <= 8 * body.len() + 64, "{wire:?}: {size} bytes of {}", body.len());
    let mut calls: HashMap<usize, String> = HashMap::new();
    for event in &said.events {
        match event {
            ModelEvent::ToolCallStarted { index, .. } => {
                assert!(calls.insert(*index, String::new()).is_none(), "{wire:?}: one call begins twice: {said:?}");
            }
            ModelEvent::ToolCallArguments { index, delta } => match calls.get_mut(index) {
                Some(arguments) => arguments.push_str(delta),
                None => assert!(calls.contains_key(index), "{wire:?}: arguments of no call: {said:?}"),
            },
            ModelEvent::ToolCallBlock { index, .. } => assert!(calls.contains_key(index), "{wire:?}: a block of no call: {said:?}"),
            ModelEvent::Restarted => calls.clear(),
            ModelEvent::Text(_)
            | ModelEvent::Picture(_)
            | ModelEvent::Source(_)
            | ModelEvent::Reasoning(_)
            | ModelEvent::ReasoningBlock(_)
            | ModelEvent::Usage(_)
            | ModelEvent::Prices(_)
            | ModelEvent::Adapted(_)
            | ModelEvent::Finished(_) => {}
        }
    }
    if said.failed.is_none() && ends_without_reason(wire, body) {
        for arguments in calls.values().filter(|arguments| !arguments.trim().is_empty()) {
            let is_json = serde_json::from_str::<Value>(arguments).is_ok();
            let is_written_so = matches!(wire, Wire::Gemini) && is_string_in(arguments, body);
            assert!(is_json || is_written_so, "{wire:?}: a call that is no JSON is whole: {said:?}");
        }
    }
}

/// Returns whether the bytes contain this text as a JSON string: a complete string in place of arguments is passed on as it is.
fn is_string_in(text: &str, body: &[u8]) -> bool {
    let written = Value::from(text).to_string();
    body.windows(written.len()).any(|window| window == written.as_bytes())
}

/// Returns whether the bytes contain no stop reason: then a call is complete only if its arguments are JSON.
fn ends_without_reason(wire: Wire, body: &[u8]) -> bool {
    let word: &[u8] = match wire {
        Wire::ChatCompletions => b"finish_reason",
        Wire::Anthropic => b"stop_reason",
        // Arguments are always complete JSON values in this dialect.
        Wire::Gemini => return true,
        // Complete answers of these dialects always have a stop reason.
        Wire::Responses | Wire::Ollama => return false,
    };
    let has = |word: &[u8]| body.windows(word.len()).any(|window| window == word);
    // An escape may hide the key.
    !has(word) && !has(b"\\u")
}

fn size(event: &ModelEvent) -> usize {
    match event {
        ModelEvent::Text(text) | ModelEvent::Reasoning(text) => text.len(),
        ModelEvent::ReasoningBlock(raw) | ModelEvent::ToolCallBlock { raw, .. } => raw.to_string().len(),
        ModelEvent::ToolCallStarted { provider_call_id, name, .. } => provider_call_id.len() + name.len(),
        ModelEvent::ToolCallArguments { delta, .. } => delta.len(),
        ModelEvent::Picture(_)
        | ModelEvent::Source(_)
        | ModelEvent::Restarted
        | ModelEvent::Usage(_)
        | ModelEvent::Prices(_)
        | ModelEvent::Adapted(_)
        | ModelEvent::Finished(_) => 0,
    }
}

/// Checks calls from byte pairs, each a piece with or without index, id and name. Needs the context of a tokio runtime.
pub fn check_calls(data: &[u8]) {
    let (_, pieces) = split_input(data);
    let mut body = String::new();
    for piece in pieces.chunks_exact(2).take(512) {
        let [which, what] = *piece else { continue };
        let pick = |from: &[&'static str], by: u8| from.get(usize::from(by) % from.len()).copied().unwrap_or_default();
        let index = pick(&["", r#""index":0,"#, r#""index":1,"#, r#""index":7,"#], which);
        let id = pick(&["", r#""id":"a","#, r#""id":"b","#, r#""id":"","#], which >> 2);
        let name = pick(&["", r#""name":"get_time","#, r#""name":"get_","#, r#""name":"weather","#], which >> 4);
        let texts = ["", "{", "}", r#"{\"a\":"#, "1", r#"\"x\""#, "{}", "null", ",", r#"{\"a\":1}"#, "]", " "];
        let arguments = pick(&texts, what);
        let call = format!(r#"{{{index}{id}"type":"function","function":{{{name}"arguments":"{arguments}"}}}}"#);
        body.push_str(&format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{call}]}}}}]}}\n\n"));
    }
    // Without a stop reason, calls must be complete.
    if data.first().is_some_and(|byte| byte % 2 == 0) {
        body.push_str("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n");
    }
    body.push_str("data: [DONE]\n\n");
    let said = decode(Wire::ChatCompletions, body.as_bytes(), &Chunking::whole());
    check_said(Wire::ChatCompletions, body.as_bytes(), &said);
}

/// Checks that a projected schema is an object of bounded size, for any references.
pub fn check_schema(data: &[u8]) {
    let Ok(wanted) = serde_json::from_slice::<Value>(data) else { return };
    for profile in [&schema_profiles().gemini, &schema_profiles().anthropic_output] {
        let projected = schema::projected(&wanted, profile);
        assert!(projected.is_object(), "{projected}");
        // The number of parts is bounded, and each is no larger than its source.
        assert!(projected.to_string().len() <= 64 + data.len().saturating_mul(16 * 5_000), "{} bytes", data.len());
    }
    let plain = schema::plain_object(&wanted);
    assert_eq!(plain.get("type").and_then(Value::as_str), Some("object"), "{plain}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seeds(folder: &str) -> Vec<Vec<u8>> {
        let folder = format!("{}/fuzz/seeds/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
        let seeds: Vec<_> = files.map(|file| std::fs::read(file.unwrap().path()).unwrap()).collect();
        assert!(!seeds.is_empty(), "{folder} is empty");
        seeds
    }

    #[tokio::test]
    async fn seeds_say_something_and_hold() {
        for wire in Wire::ALL {
            let whole =
                seeds(wire.name()).iter().filter(|seed| decode(wire, &seed[4..], &Chunking::whole()).failed.is_none()).count();
            assert!(whole >= 3, "{wire:?}: {whole} seeds are whole streams");
            for seed in seeds(wire.name()) {
                check_answer(wire, &seed);
                check_frames(&seed);
            }
        }
        seeds("schema").iter().for_each(|seed| check_schema(seed));
        seeds("calls").iter().for_each(|seed| check_calls(seed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A short fuzzing run in each test run: seeds with a piece cut out and a few bytes changed.
        #[test]
        fn damaged_seeds_hold(at in any::<prop::sample::Index>(), from in any::<prop::sample::Index>(), cut in 0..80_usize,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _within = runtime.enter();
            for wire in Wire::ALL {
                let mut seed = at.get(&seeds(wire.name())).clone();
                let from = from.index(seed.len());
                seed.drain(from..(from + cut).min(seed.len()));
                for (at, byte) in &changes {
                    if !seed.is_empty() {
                        let at = at.index(seed.len());
                        seed[at] = *byte;
                    }
                }
                check_answer(wire, &seed);
            }
        }

        #[test]
        fn calls_in_any_pieces_hold(data in prop::collection::vec(any::<u8>(), 0..64)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let _within = runtime.enter();
            check_calls(&data);
        }
    }
}
