//! Reads answers that are JSON objects.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::domain::model::{MalformedAnswer, ModelEvent, ModelFinish};
use crate::engine::strategy::json_answers::offer::Offer;
use crate::support::{json, text};

/// Bytes within which the words of an answer must begin to be streamed; otherwise they are read at the end.
const BEGINNING: usize = 256;

/// Characters of a malformed answer that are quoted to the model.
const QUOTED_CHARS: usize = 300;

/// The index of the call; a dialect that also sends calls counts from 0.
const CALL: usize = usize::MAX;

const NO_TOOLS: &str = r#"no tools are available, only "answer" is"#;

/// The form of a final answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Text,
    /// Any JSON, which is passed on as it was written: the agent has requested a shape.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Beginning,
    /// A final answer, decoded up to here.
    Words {
        at: usize,
    },
    /// All words are shown.
    Closed,
    /// A call, or an object that is read when it is whole.
    Later,
}

/// Converts the events of such a model into ordinary ones. The words of a final answer are streamed.
#[derive(Debug)]
pub struct Reader {
    offer: Offer,
    shape: Shape,
    raw: String,
    stage: Stage,
    /// Bytes of decoded words that were passed on.
    shown: usize,
    /// The model has made an ordinary call, which it was not offered.
    called: bool,
    malformed: Option<MalformedAnswer>,
}

impl Reader {
    pub fn new(offer: Offer, shape: Shape) -> Self {
        Self { offer, shape, raw: String::new(), stage: Stage::Beginning, shown: 0, called: false, malformed: None }
    }

    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    /// Returns what was wrong with the answer, once it has ended.
    pub fn malformed(self) -> Option<MalformedAnswer> {
        self.malformed
    }

    pub fn read(&mut self, event: ModelEvent) -> Vec<ModelEvent> {
        match event {
            ModelEvent::Text(more) => {
                self.raw.push_str(&more);
                self.words().into_iter().collect()
            }
            ModelEvent::Restarted => {
                *self = Self::new(self.offer, self.shape);
                vec![ModelEvent::Restarted]
            }
            ModelEvent::ToolCallStarted { .. } => {
                self.called = true;
                vec![event]
            }
            ModelEvent::Finished(finish) => self.end(finish),
            _ => vec![event],
        }
    }

    fn words(&mut self) -> Option<ModelEvent> {
        if self.stage == Stage::Beginning {
            self.stage = match beginning(&self.raw) {
                Some(_) if self.offer == Offer::Call => Stage::Later,
                Some(at) => Stage::Words { at },
                None if self.raw.len() > BEGINNING => Stage::Later,
                None => Stage::Beginning,
            };
        }
        let Stage::Words { at } = self.stage else { return None };
        let decoded = decode(&self.raw, at);
        self.stage = if decoded.closed { Stage::Closed } else { Stage::Words { at: decoded.at } };
        self.shown += decoded.text.len();
        (!decoded.text.is_empty()).then_some(ModelEvent::Text(decoded.text))
    }

    fn end(&mut self, finish: ModelFinish) -> Vec<ModelEvent> {
        let written = unfenced(&self.raw);
        let step = match (self.called, self.offer) {
            // An ordinary call is one of a tool that may not be called now.
            (true, Offer::Answer) => Err(NO_TOOLS.to_owned()),
            // Without an object, the answer counts as empty, or by its ordinary calls.
            (true, Offer::Either | Offer::Call) | (false, _) if written.is_empty() => return vec![ModelEvent::Finished(finish)],
            (true, Offer::Either | Offer::Call) => Err("it calls a tool beside the object".to_owned()),
            (false, _) => self.parse(written),
        };
        match step {
            Ok(Step::Answer(words)) => {
                let rest = words.get(self.shown..).unwrap_or_default().to_owned();
                let finish = if finish == ModelFinish::ToolCalls { ModelFinish::Stop } else { finish };
                vec![ModelEvent::Text(rest), ModelEvent::Finished(finish)]
            }
            Ok(Step::Call { name, arguments }) => {
                let finish = if finish == ModelFinish::Stop { ModelFinish::ToolCalls } else { finish };
                vec![
                    ModelEvent::ToolCallStarted { index: CALL, provider_call_id: String::new(), name },
                    ModelEvent::ToolCallArguments { index: CALL, delta: arguments },
                    ModelEvent::Finished(finish),
                ]
            }
            // Refusals come in plain words.
            Err(_) if finish == ModelFinish::Refused => {
                let words = if self.shown == 0 { written.to_owned() } else { String::new() };
                vec![ModelEvent::Text(words), ModelEvent::Finished(finish)]
            }
            // Words that were cut at the output limit are kept, as of any model.
            Err(_) if finish == ModelFinish::Length && self.shown > 0 => vec![ModelEvent::Finished(finish)],
            Err(reason) => {
                let reason = if finish == ModelFinish::Length { format!("it reached the output limit: {reason}") } else { reason };
                self.malformed = Some(MalformedAnswer { reason, said: text::prefix_chars(written, QUOTED_CHARS).to_owned() });
                vec![ModelEvent::Finished(finish)]
            }
        }
    }

    fn parse(&self, written: &str) -> Result<Step, String> {
        // Checked here, because serde would accept an array as the fields in order.
        if !written.starts_with('{') {
            return Err("it does not begin with {".to_owned());
        }
        let Object { answer, tool, arguments } = serde_json::from_str(written).map_err(|error| error.to_string())?;
        match (answer.map(RawValue::get), tool.map(RawValue::get), arguments.map(RawValue::get)) {
            (Some(answer), None, None) => match (self.offer, self.shape) {
                (Offer::Call, Shape::Text | Shape::Any) => Err("a tool must be called first".to_owned()),
                (Offer::Either | Offer::Answer, Shape::Text | Shape::Any) if answer.starts_with('"') => {
                    Ok(Step::Answer(decode(answer, 1).text))
                }
                (Offer::Either | Offer::Answer, Shape::Any) => Ok(Step::Answer(storable(answer))),
                (Offer::Either | Offer::Answer, Shape::Text) => Err(r#""answer" must be a string"#.to_owned()),
            },
            (None, Some(_), _) if self.offer == Offer::Answer => Err(NO_TOOLS.to_owned()),
            (None, Some(tool), _) if !tool.starts_with('"') => Err(r#""tool" must be a name"#.to_owned()),
            (None, Some(tool), Some(arguments)) if arguments.starts_with('{') => {
                Ok(Step::Call { name: decode(tool, 1).text, arguments: storable(arguments) })
            }
            (None, Some(_), Some(_)) => Err(r#""arguments" must be an object"#.to_owned()),
            (None, Some(_), None) => Err(r#""arguments" is missing"#.to_owned()),
            (Some(_), _, _) => Err("it is an answer and a call at once".to_owned()),
            (None, None, _) => Err(r#"it has neither "answer" nor "tool""#.to_owned()),
        }
    }
}

enum Step {
    Answer(String),
    Call { name: String, arguments: String },
}

/// The object as written. A `null` field counts as missing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Object<'a> {
    #[serde(borrow, default)]
    answer: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

fn storable(written: &str) -> String {
    text::storable_json(json::mend_surrogates(written).unwrap_or_else(|| written.to_owned()))
}

/// Removes a code fence, which many models add.
fn unfenced(raw: &str) -> &str {
    let text = raw.trim();
    let inner = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    inner.map_or(text, |inner| inner.strip_prefix("json").unwrap_or(inner).trim())
}

/// Returns where the words of a final answer begin; `None` if that is unknown yet, or there are none.
fn beginning(raw: &str) -> Option<usize> {
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
    closed: bool,
}

/// Decodes a JSON string from `at` on, as far as it is certain. Escapes that name no storable character (U+0000, half a surrogate
/// pair) become U+FFFD. Stops at an incomplete or invalid escape.
fn decode(raw: &str, mut at: usize) -> Decoded {
    let mut out = String::new();
    loop {
        let rest = raw.get(at..).unwrap_or_default();
        let Some(special) = rest.find(['"', '\\']) else {
            out.push_str(rest);
            return Decoded { text: out, at: raw.len(), closed: false };
        };
        out.push_str(&rest[..special]);
        at += special;
        let rest = &rest[special..];
        if rest.starts_with('"') {
            return Decoded { text: out, at, closed: true };
        }
        let Some((character, length)) = escaped(rest) else { return Decoded { text: out, at, closed: false } };
        out.push(character);
        at += length;
    }
}

/// Returns the character of the escape at the beginning, and the bytes of the escape.
fn escaped(rest: &str) -> Option<(char, usize)> {
    let simple = match rest.as_bytes().get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unit_escape(rest),
        _ => return None,
    };
    Some((simple, 2))
}

fn unit_escape(rest: &str) -> Option<(char, usize)> {
    let unit_at = |at: usize| rest.get(at..at + 6)?.strip_prefix("\\u").and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let high = unit_at(0)?;
    if high == 0 {
        return Some((char::REPLACEMENT_CHARACTER, 6));
    }
    if !(0xd800..=0xdbff).contains(&high) {
        return Some((char::from_u32(u32::from(high)).unwrap_or(char::REPLACEMENT_CHARACTER), 6));
    }
    let follows = rest.get(6..).unwrap_or_default();
    if follows.len() < 6 && "\\u".starts_with(follows.get(..2).unwrap_or(follows)) {
        return None;
    }
    let low = unit_at(6).filter(|low| (0xdc00..=0xdfff).contains(low));
    let pair = low.and_then(|low| char::decode_utf16([high, low]).next()?.ok());
    Some(pair.map_or((char::REPLACEMENT_CHARACTER, 6), |character| (character, 12)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn read(offer: Offer, pieces: &[&str], finish: ModelFinish) -> (String, Vec<ModelEvent>, Option<String>) {
        let mut reader = Reader::new(offer, Shape::Text);
        let mut shown = String::new();
        let mut rest = Vec::new();
        let events = pieces.iter().map(|piece| ModelEvent::Text((*piece).to_owned())).chain([ModelEvent::Finished(finish)]);
        for event in events.flat_map(|event| reader.read(event)).collect::<Vec<_>>() {
            match event {
                ModelEvent::Text(more) => shown.push_str(&more),
                other => rest.push(other),
            }
        }
        (shown, rest, reader.malformed().map(|malformed| malformed.reason))
    }

    #[rstest]
    #[case(r#"{"answer": "Hi."}"#, "Hi.")]
    #[case("```json\n{\"answer\":\"Hi.\"}\n```", "Hi.")]
    #[case(r#" {"tool":null,"arguments":null,"answer":"a\n\"b\" \u00e9 \ud83d\ude00"} "#, "a\n\"b\" é 😀")]
    #[case(r#"{"answer":"\u0000 \ud83d \ude00 \ud83d\u0041 \\u0000"}"#, "\u{fffd} \u{fffd} \u{fffd} \u{fffd}A \\u0000")]
    fn words_are_the_same_in_any_pieces(#[case] written: &str, #[case] words: &str) {
        let (shown, rest, malformed) = read(Offer::Either, &[written], ModelFinish::Stop);
        assert_eq!((shown.as_str(), &malformed), (words, &None));
        assert_eq!(rest, [ModelEvent::Finished(ModelFinish::Stop)]);
        let singly: Vec<String> = written.chars().map(String::from).collect();
        let singly: Vec<&str> = singly.iter().map(String::as_str).collect();
        assert_eq!(read(Offer::Either, &singly, ModelFinish::Stop), (shown, rest, malformed));
    }

    #[test]
    fn words_are_passed_on_as_they_come() {
        let mut reader = Reader::new(Offer::Either, Shape::Text);
        let mut say = |piece: &str| reader.read(ModelEvent::Text(piece.to_owned()));
        assert_eq!(say("{\"ans"), []);
        assert_eq!(say("wer\": \"One"), [ModelEvent::Text("One".to_owned())]);
        assert_eq!(say(" two\\"), [ModelEvent::Text(" two".to_owned())]);
        assert_eq!(say("n"), [ModelEvent::Text("\n".to_owned())]);
        assert_eq!(say("\"}"), []);
    }

    #[test]
    fn a_call_is_a_call() {
        let (shown, rest, malformed) = read(Offer::Either, &[r#"{"tool":"read","#, r#""arguments":{"n":1}}"#], ModelFinish::Stop);
        assert_eq!((shown.as_str(), malformed), ("", None));
        let begun = ModelEvent::ToolCallStarted { index: CALL, provider_call_id: String::new(), name: "read".to_owned() };
        let arguments = ModelEvent::ToolCallArguments { index: CALL, delta: r#"{"n":1}"#.to_owned() };
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
    #[case(r#"{"answer":"a","tool":"read","arguments":{}}"#, "at once")]
    #[case(r#"{"answer":{"a":1}}"#, "must be a string")]
    #[case("{}", "neither")]
    #[case(r#"["Hi."]"#, "begin with")]
    fn what_is_malformed_is_said(#[case] written: &str, #[case] reason: &str) {
        let (_, rest, malformed) = read(Offer::Either, &[written], ModelFinish::Stop);
        assert_eq!(rest, [ModelEvent::Finished(ModelFinish::Stop)], "no call of a malformed answer is passed on");
        assert!(malformed.as_ref().is_some_and(|said| said.contains(reason)), "{malformed:?}");
    }

    #[test]
    fn an_object_is_one_that_is_offered() {
        let call = r#"{"tool":"read","arguments":{}}"#;
        assert!(read(Offer::Answer, &[call], ModelFinish::Stop).2.is_some_and(|reason| reason.contains("no tools")));
        let (shown, _, malformed) = read(Offer::Call, &[r#"{"answer":"No."}"#], ModelFinish::Stop);
        assert!(shown.is_empty() && malformed.is_some_and(|reason| reason.contains("called first")));
    }

    /// A call of the provider's kind, with or without words, where the agent wants none.
    #[rstest]
    #[case("")]
    #[case(r#"{"answer":"Hi."}"#)]
    fn a_native_call_is_none_where_only_words_are_wanted(#[case] written: &str) {
        let mut reader = Reader::new(Offer::Answer, Shape::Text);
        reader.read(ModelEvent::ToolCallStarted { index: 0, provider_call_id: "call_1".to_owned(), name: "write".to_owned() });
        reader.read(ModelEvent::Text(written.to_owned()));
        reader.read(ModelEvent::Finished(ModelFinish::ToolCalls));
        assert!(reader.malformed().is_some_and(|malformed| malformed.reason.contains("no tools")));
    }

    #[test]
    fn cut_words_are_kept_and_cut_calls_are_not() {
        let (shown, _, malformed) = read(Offer::Either, &[r#"{"answer":"One tw"#], ModelFinish::Length);
        assert_eq!((shown.as_str(), malformed), ("One tw", None));
        let (_, rest, malformed) = read(Offer::Either, &[r#"{"tool":"write","arguments":{"text":"a"#], ModelFinish::Length);
        assert_eq!(rest, [ModelEvent::Finished(ModelFinish::Length)]);
        assert!(malformed.is_some_and(|reason| reason.contains("output limit")));
    }

    #[test]
    fn refusals_are_plain_words() {
        let (shown, _, malformed) = read(Offer::Either, &["I will not."], ModelFinish::Refused);
        assert_eq!((shown.as_str(), malformed), ("I will not.", None));
    }

    #[test]
    fn a_wanted_shape_is_shown_as_it_was_written() {
        let mut reader = Reader::new(Offer::Answer, Shape::Any);
        reader.read(ModelEvent::Text(r#"{"answer":{"b":1,"a":[2]}}"#.to_owned()));
        let said = reader.read(ModelEvent::Finished(ModelFinish::Stop));
        assert_eq!(said[0], ModelEvent::Text(r#"{"b":1,"a":[2]}"#.to_owned()));
    }

    #[test]
    fn a_second_beginning_forgets_the_first() {
        let mut reader = Reader::new(Offer::Either, Shape::Text);
        reader.read(ModelEvent::Text(r#"{"answer":"One"#.to_owned()));
        assert_eq!(reader.read(ModelEvent::Restarted), [ModelEvent::Restarted]);
        assert_eq!(reader.read(ModelEvent::Text(r#"{"answer":"Two"}"#.to_owned())), [ModelEvent::Text("Two".to_owned())]);
    }
}
