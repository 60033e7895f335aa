//! Converts answers that are JSON objects into text and calls. Must not know the request that asked for them.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::model::{MalformedAnswer, ModelEvent, ModelFinish};
use crate::engine::strategy::json_answers::offer::Offer;
use crate::support::{json, text};

/// The answer's text is streamed if it begins within this many bytes; otherwise it is read when the answer is complete.
const STREAM_WITHIN: usize = 256;

/// Characters of a malformed answer that the correction quotes to the model.
const QUOTED_CHARS: usize = 300;

/// The index of the JSON call. Calls of the dialect count from 0, so it never equals one of theirs.
const JSON_CALL_INDEX: usize = usize::MAX;

const NO_TOOLS: &str = r#"no tools are available, so the object must have "answer""#;

/// The type of the field `answer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFormat {
    Text,
    /// Any JSON, passed on as written: the agent has configured a schema.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadState {
    Beginning,
    /// The text of a final answer, decoded up to this byte.
    Text {
        at: usize,
    },
    /// The complete text was passed on.
    Complete,
    /// A call, or another object that is parsed when it is complete.
    AtEnd,
}

/// Converts the model's events: a JSON object becomes ordinary text or a tool call. The text of a final answer is streamed.
#[derive(Debug)]
pub struct Reader {
    offer: Offer,
    shape: AnswerFormat,
    raw: String,
    stage: ReadState,
    /// Bytes of decoded text that were passed on.
    shown_bytes: usize,
    /// Whether the model has made a tool call of the dialect, although no tools were declared.
    has_dialect_call: bool,
    malformed: Option<MalformedAnswer>,
}

impl Reader {
    pub fn new(offer: Offer, shape: AnswerFormat) -> Self {
        Self {
            offer,
            shape,
            raw: String::new(),
            stage: ReadState::Beginning,
            shown_bytes: 0,
            has_dialect_call: false,
            malformed: None,
        }
    }

    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    /// Returns why the completed answer is malformed, if it is.
    pub fn malformed(self) -> Option<MalformedAnswer> {
        self.malformed
    }

    pub fn read(&mut self, event: ModelEvent) -> Vec<ModelEvent> {
        match event {
            ModelEvent::Text(more) => {
                self.raw.push_str(&more);
                self.answer_text().into_iter().collect()
            }
            ModelEvent::Restarted => {
                *self = Self::new(self.offer, self.shape);
                vec![ModelEvent::Restarted]
            }
            ModelEvent::ToolCallStarted { .. } => {
                self.has_dialect_call = true;
                vec![event]
            }
            ModelEvent::Finished(finish) => self.end(finish),
            _ => vec![event],
        }
    }

    fn answer_text(&mut self) -> Option<ModelEvent> {
        if self.stage == ReadState::Beginning {
            self.stage = match find_answer_text(&self.raw) {
                Some(_) if self.offer == Offer::Call => ReadState::AtEnd,
                Some(at) => ReadState::Text { at },
                None if self.raw.len() > STREAM_WITHIN => ReadState::AtEnd,
                None => ReadState::Beginning,
            };
        }
        let ReadState::Text { at } = self.stage else { return None };
        let decoded = decode(&self.raw, at);
        self.stage = if decoded.is_closed { ReadState::Complete } else { ReadState::Text { at: decoded.at } };
        self.shown_bytes += decoded.text.len();
        (!decoded.text.is_empty()).then_some(ModelEvent::Text(decoded.text))
    }

    fn end(&mut self, finish: ModelFinish) -> Vec<ModelEvent> {
        let object = without_code_fence(&self.raw);
        let step = match (self.has_dialect_call, self.offer) {
            // Such a call names a tool that is not available in this step.
            (true, Offer::Answer) => Err(NO_TOOLS.to_owned()),
            // Without an object, the answer consists of dialect calls or is empty, and the loop handles it like any other.
            (true, Offer::Either | Offer::Call) | (false, _) if object.is_empty() => return vec![ModelEvent::Finished(finish)],
            (true, Offer::Either | Offer::Call) => Err("it contains a tool call beside the object".to_owned()),
            (false, _) => self.parse(object),
        };
        match step {
            Ok(ParsedAnswer::Answer(answer_text)) => {
                let rest = answer_text.get(self.shown_bytes..).unwrap_or_default().to_owned();
                let finish = if finish == ModelFinish::ToolCalls { ModelFinish::Stop } else { finish };
                vec![ModelEvent::Text(rest), ModelEvent::Finished(finish)]
            }
            Ok(ParsedAnswer::Call { name, rationale, arguments }) => {
                let finish = if finish == ModelFinish::Stop { ModelFinish::ToolCalls } else { finish };
                let reason = Some(rationale).filter(|words| !words.is_empty()).map(ModelEvent::Text);
                let call = [
                    ModelEvent::ToolCallStarted { index: JSON_CALL_INDEX, provider_call_id: String::new(), name },
                    ModelEvent::ToolCallArguments { index: JSON_CALL_INDEX, delta: arguments },
                    ModelEvent::Finished(finish),
                ];
                reason.into_iter().chain(call).collect()
            }
            // Refusals are plain text.
            Err(_) if finish == ModelFinish::Refused => {
                let answer_text = if self.shown_bytes == 0 { object.to_owned() } else { String::new() };
                vec![ModelEvent::Text(answer_text), ModelEvent::Finished(finish)]
            }
            // Text that the output limit cut is kept, as in any answer.
            Err(_) if finish == ModelFinish::Length && self.shown_bytes > 0 => vec![ModelEvent::Finished(finish)],
            Err(reason) => {
                let reason = if finish == ModelFinish::Length { format!("it reached the output limit: {reason}") } else { reason };
                self.malformed = Some(MalformedAnswer { reason, quoted: text::prefix_chars(object, QUOTED_CHARS).to_owned() });
                vec![ModelEvent::Finished(finish)]
            }
        }
    }

    fn parse(&self, object: &str) -> Result<ParsedAnswer, String> {
        // Checked here, because serde also accepts an array with the fields in order.
        if !object.starts_with('{') {
            return Err("it does not begin with {".to_owned());
        }
        let Object { answer, tool, rationale, arguments } = serde_json::from_str(object).map_err(|error| error.to_string())?;
        match (answer.map(RawValue::get), tool.map(RawValue::get), arguments.map(RawValue::get)) {
            (Some(answer), None, None) => match (self.offer, self.shape) {
                (Offer::Call, AnswerFormat::Text | AnswerFormat::Any) => Err("a tool must be called first".to_owned()),
                (Offer::Either | Offer::Answer, AnswerFormat::Text | AnswerFormat::Any) if answer.starts_with('"') => {
                    Ok(ParsedAnswer::Answer(decode(answer, 1).text))
                }
                (Offer::Either | Offer::Answer, AnswerFormat::Any) => Ok(ParsedAnswer::Answer(storable(answer))),
                (Offer::Either | Offer::Answer, AnswerFormat::Text) => Err(r#""answer" must be a string"#.to_owned()),
            },
            (None, Some(_), _) if self.offer == Offer::Answer => Err(NO_TOOLS.to_owned()),
            (None, Some(tool), _) if !tool.starts_with('"') => Err(r#""tool" must be a name"#.to_owned()),
            (None, Some(tool), Some(arguments)) if arguments.starts_with('{') => {
                let rationale = rationale.map(RawValue::get).and_then(|text| text.strip_prefix('"'));
                let rationale = rationale.map(|text| decode(text, 0).text).unwrap_or_default();
                Ok(ParsedAnswer::Call { name: decode(tool, 1).text, rationale, arguments: storable(arguments) })
            }
            (None, Some(_), Some(_)) => Err(r#""arguments" must be an object"#.to_owned()),
            (None, Some(_), None) => Err(r#""arguments" is missing"#.to_owned()),
            (Some(_), _, _) => Err(r#"it has both "answer" and "tool""#.to_owned()),
            (None, None, _) => Err(r#"it has neither "answer" nor "tool""#.to_owned()),
        }
    }
}

enum ParsedAnswer {
    Answer(String),
    Call { name: String, rationale: String, arguments: String },
}

/// The object with its values as written. A `null` field counts as missing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object<'a> {
    #[serde(borrow, default)]
    answer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool: Option<&'a RawValue>,
    /// Why the call is needed. A human reads it before approving the call.
    #[serde(borrow, default)]
    rationale: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

fn storable(written: &str) -> String {
    text::storable_json(json::mend_surrogates(written).unwrap_or_else(|| written.to_owned()))
}

/// Removes the code fence that many models add.
fn without_code_fence(raw: &str) -> &str {
    let text = raw.trim();
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inner.map_or(text, |inner| inner.strip_prefix("json").unwrap_or(inner).trim())
}

/// Returns where the text of a final answer begins; `None` if it is not known yet, or the object has no such text.
fn find_answer_text(raw: &str) -> Option<usize> {
    let skip = |text: &'_ str, word: &str| text.trim_start().strip_prefix(word).map(str::len);
    let at = |rest: usize| raw.len() - rest;
    let mut rest = raw;
    if let Some(left) = skip(rest, "```") {
        rest = &raw[at(left)..];
        rest = rest.strip_prefix("json").unwrap_or(rest);
    }
    for word in ["{", "\"answer\"", ":", "\""] {
        rest = &raw[at(skip(rest, word)?)..];
    }
    Some(at(rest.len()))
}

#[derive(Debug, PartialEq, Eq)]
struct Decoded {
    text: String,
    at: usize,
    is_closed: bool,
}

/// Decodes a JSON string from `at` up to the first incomplete or invalid escape. Escapes of characters that cannot be stored (U+0000,
/// unpaired surrogates) become U+FFFD.
fn decode(raw: &str, mut at: usize) -> Decoded {
    let mut out = String::new();
    loop {
        let rest = raw.get(at..).unwrap_or_default();
        let Some(special) = rest.find(['"', '\\']) else {
            out.push_str(rest);
            return Decoded { text: out, at: raw.len(), is_closed: false };
        };
        out.push_str(&rest[..special]);
        at += special;
        let rest = &rest[special..];
        if rest.starts_with('"') {
            return Decoded { text: out, at, is_closed: true };
        }
        let Some((character, length)) = json::decode_escape(rest) else { return Decoded { text: out, at, is_closed: false } };
        out.push(character);
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(offer: Offer, pieces: &[&str], finish: ModelFinish) -> (String, Vec<ModelEvent>, Option<String>) {
        let mut reader = Reader::new(offer, AnswerFormat::Text);
        let mut shown_bytes = String::new();
        let mut rest = Vec::new();
        let events = pieces.iter().map(|piece| ModelEvent::Text((*piece).to_owned())).chain([ModelEvent::Finished(finish)]);
        for event in events.flat_map(|event| reader.read(event)).collect::<Vec<_>>() {
            match event {
                ModelEvent::Text(more) => shown_bytes.push_str(&more),
                other => rest.push(other),
            }
        }
        (shown_bytes, rest, reader.malformed().map(|malformed| malformed.reason))
    }

    #[rstest]
    #[case(r#"{"answer": "Hi."}"#, "Hi.")]
    #[case("```json\n{\"answer\":\"Hi.\"}\n```", "Hi.")]
    #[case(r#" {"tool":null,"arguments":null,"answer":"a\n\"b\" \u00e9 \ud83d\ude00"} "#, "a\n\"b\" é 😀")]
    #[case(r#"{"answer":"\u0000 \ud83d \ude00 \ud83d\u0041 \\u0000"}"#, "\u{fffd} \u{fffd} \u{fffd} \u{fffd}A \\u0000")]
    fn words_are_the_same_in_any_pieces(#[case] object: &str, #[case] answer_text: &str) {
        let (shown_bytes, rest, malformed) = read(Offer::Either, &[object], ModelFinish::Stop);
        assert_eq!((shown_bytes.as_str(), &malformed), (answer_text, &None));
        assert_eq!(rest, [ModelEvent::Finished(ModelFinish::Stop)]);
        let singly: Vec<String> = object.chars().map(String::from).collect();
        let singly: Vec<&str> = singly.iter().map(String::as_str).collect();
        assert_eq!(read(Offer::Either, &singly, ModelFinish::Stop), (shown_bytes, rest, malformed));
    }

    #[test]
    fn words_are_passed_on_as_they_come() {
        let mut reader = Reader::new(Offer::Either, AnswerFormat::Text);
        let mut say = |piece: &str| reader.read(ModelEvent::Text(piece.to_owned()));
        assert_eq!(say("{\"ans"), []);
        assert_eq!(say("wer\": \"One"), [ModelEvent::Text("One".to_owned())]);
        assert_eq!(say(" two\\"), [ModelEvent::Text(" two".to_owned())]);
        assert_eq!(say("n"), [ModelEvent::Text("\n".to_owned())]);
        assert_eq!(say("\"}"), []);
    }

    #[test]
    fn a_call_is_a_call() {
        let (shown_bytes, rest, malformed) =
            read(Offer::Either, &[r#"{"tool":"read","#, r#""arguments":{"n":1}}"#], ModelFinish::Stop);
        assert_eq!((shown_bytes.as_str(), malformed), ("", None));
        let begun =
            ModelEvent::ToolCallStarted { index: JSON_CALL_INDEX, provider_call_id: String::new(), name: "read".to_owned() };
        let arguments = ModelEvent::ToolCallArguments { index: JSON_CALL_INDEX, delta: r#"{"n":1}"#.to_owned() };
        assert_eq!(rest, [begun, arguments, ModelEvent::Finished(ModelFinish::ToolCalls)]);
    }

    #[rstest]
    #[case("I will look.", "begin with")]
    #[case(r#"{"answer":"a"} {"answer":"b"}"#, "trailing")]
    #[case(r#"{"answer":"a","answer":"b"}"#, "duplicate")]
    #[case(r#"{"tool":"read","arguments":{}} and then"#, "trailing")]
    #[case(r#"{"tool":"read","args":{}}"#, "unknown field `args`")]
    #[case(r#"{"tool":"read"}"#, "missing")]
    #[case(r#"{"tool":"read","arguments":"{}"}"#, "must be an object")]
    #[case(r#"{"tool":7,"arguments":{}}"#, "must be a name")]
    #[case(r#"{"tool":"read","arguments":{"n":1}"#, "EOF")]
    #[case(r#"{"answer":"a","tool":"read","arguments":{}}"#, "has both")]
    #[case(r#"{"answer":{"a":1}}"#, "must be a string")]
    #[case("{}", "neither")]
    #[case(r#"["Hi."]"#, "begin with")]
    fn malformed_answer_is_explained(#[case] object: &str, #[case] reason: &str) {
        let (_, rest, malformed) = read(Offer::Either, &[object], ModelFinish::Stop);
        assert_eq!(rest, [ModelEvent::Finished(ModelFinish::Stop)], "no call of a malformed answer is passed on");
        assert!(malformed.as_ref().is_some_and(|said| said.contains(reason)), "{malformed:?}");
    }

    #[test]
    fn an_object_is_one_that_is_offered() {
        let call = r#"{"tool":"read","arguments":{}}"#;
        assert!(read(Offer::Answer, &[call], ModelFinish::Stop).2.is_some_and(|reason| reason.contains("no tools")));
        let (shown_bytes, _, malformed) = read(Offer::Call, &[r#"{"answer":"No."}"#], ModelFinish::Stop);
        assert!(shown_bytes.is_empty() && malformed.is_some_and(|reason| reason.contains("called first")));
    }

    /// A tool call of the dialect, with or without text, although structured output declares no tools.
    #[rstest]
    #[case("")]
    #[case(r#"{"answer":"Hi."}"#)]
    fn a_native_call_is_none_where_only_words_are_wanted(#[case] object: &str) {
        let mut reader = Reader::new(Offer::Answer, AnswerFormat::Text);
        reader.read(ModelEvent::ToolCallStarted { index: 0, provider_call_id: "call_1".to_owned(), name: "write".to_owned() });
        reader.read(ModelEvent::Text(object.to_owned()));
        reader.read(ModelEvent::Finished(ModelFinish::ToolCalls));
        assert!(reader.malformed().is_some_and(|malformed| malformed.reason.contains("no tools")));
    }

    #[test]
    fn cut_words_are_kept_and_cut_calls_are_not() {
        let (shown_bytes, _, malformed) = read(Offer::Either, &[r#"{"answer":"One tw"#], ModelFinish::Length);
        assert_eq!((shown_bytes.as_str(), malformed), ("One tw", None));
        let (_, rest, malformed) = read(Offer::Either, &[r#"{"tool":"write","arguments":{"text":"a"#], ModelFinish::Length);
        assert_eq!(rest, [ModelEvent::Finished(ModelFinish::Length)]);
        assert!(malformed.is_some_and(|reason| reason.contains("output limit")));
    }

    #[test]
    fn refusals_are_plain_words() {
        let (shown_bytes, _, malformed) = read(Offer::Either, &["I will not."], ModelFinish::Refused);
        assert_eq!((shown_bytes.as_str(), malformed), ("I will not.", None));
    }

    #[test]
    fn a_wanted_shape_is_shown_as_it_was_written() {
        let mut reader = Reader::new(Offer::Answer, AnswerFormat::Any);
        reader.read(ModelEvent::Text(r#"{"answer":{"b":1,"a":[2]}}"#.to_owned()));
        let said = reader.read(ModelEvent::Finished(ModelFinish::Stop));
        assert_eq!(said[0], ModelEvent::Text(r#"{"b":1,"a":[2]}"#.to_owned()));
    }

    #[test]
    fn a_second_beginning_forgets_the_first() {
        let mut reader = Reader::new(Offer::Either, AnswerFormat::Text);
        reader.read(ModelEvent::Text(r#"{"answer":"One"#.to_owned()));
        assert_eq!(reader.read(ModelEvent::Restarted), [ModelEvent::Restarted]);
        assert_eq!(reader.read(ModelEvent::Text(r#"{"answer":"Two"}"#.to_owned())), [ModelEvent::Text("Two".to_owned())]);
    }
}
