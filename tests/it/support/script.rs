//! The scripts that tests write into user messages for the scripted model.
//!
//! `[[id:NAME]]` names the conversation for the test's own look-ups. A list of model answers follows, one per round, separated by
//! `[[next]]`. `[[call:TOOL {json}]]` calls a tool, and `[[wrote:TOOL TEXT]]` calls it with arguments that need not be JSON.
//! `[[text:N,MS]]` sends N tokens with MS milliseconds after each, and `[[say:WORDS]]` sends one token. `[[reason:N,MS]]` sends
//! reasoning. `[[cite:URL]]` names a source. `[[hold]]` waits until the test releases the name.
//!
//! `[[cut]]` ends the connection without a finish. `[[end]]` ends the answer without one, after its calls. `[[status:N]]` answers
//! with an HTTP error, and `[[flaky:TIMES,N]]` does so only that many times. `[[mute:TIMES]]` does not answer that many times.
//! `[[or]]` separates the first answer from the answer to a repeated request of the same round. A round without words says `done`.
//!
//! `[[choose:A,B]]` is the answer, once for the whole script, when the model is offered only the choice of tool categories. Without
//! names it answers with text.

use serde_json::Value;

/// A parsed script.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Script {
    /// Name of the conversation.
    pub id: String,
    /// The categories that the model names when it is asked for some.
    pub choice: Option<String>,
    /// The actions of each model call.
    pub rounds: Vec<Vec<Act>>,
}

/// One thing that the model does.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Asks for a tool.
    Call {
        /// Its name.
        name: String,
        /// Its arguments, as they are written.
        arguments: String,
    },
    /// Says so many tokens, with so many milliseconds after each.
    Text(usize, u64),
    /// Says one token.
    Say(String),
    /// Thinks so many tokens, with so many milliseconds after each.
    Reason(usize, u64),
    /// Names the page at this URL as a source.
    Cite(String),
    /// Waits for the test.
    Hold,
    /// Ends without a finish.
    Cut,
    /// Ends after the calls, and does not say why.
    End,
    /// An HTTP error instead of an answer.
    Status(u16),
    /// An HTTP error so many times, before the answer.
    Flaky(usize, u16),
    /// Nothing at all so many times, before the answer.
    Mute(usize),
    /// The following actions are for the next request of the same round.
    Or,
}

impl Script {
    /// Returns the model's actions in a round, at its `time`-th request, counted from 1. If `choosing`, the model is only offered
    /// the choice of categories.
    pub fn acts(&self, round: usize, time: usize, choosing: bool) -> Vec<Act> {
        match self.choice.as_deref().filter(|_| choosing) {
            None => {
                let all = self.rounds.get(round).map_or(&[][..], Vec::as_slice);
                let mut turns = all.split(|act| *act == Act::Or);
                let last = all.rsplit(|act| *act == Act::Or).next();
                turns.nth(time - 1).or(last).unwrap_or_default().to_vec()
            }
            Some("") => vec![Act::Say("I have no tools.".to_owned())],
            Some(names) => {
                let arguments = serde_json::json!({"categories": names.split(',').collect::<Vec<_>>()}).to_string();
                vec![Act::Call { name: "select_categories".to_owned(), arguments }]
            }
        }
    }

    /// Returns the script of a model that is given a plan's step `use TOOL {json}`, or the steps to report. The names end in
    /// `.step` and `.told`.
    pub fn of_plan(text: &str) -> Option<Self> {
        let of = |id: String, act: Act| Some(Self { id, choice: None, rounds: vec![vec![act]] });
        if let Some((_, steps)) = text.split_once("\n\nThe steps:\n") {
            let told = steps.lines().map(|line| if line.contains(" - ok: ") { "ok" } else { "failed" });
            return of(
                format!("{}.told", Self::parse(text).id),
                Act::Say(format!("told: {}", told.collect::<Vec<_>>().join(", "))),
            );
        }
        let step = text.strip_prefix("The step: ")?;
        let Some((name, rest)) = step.split_once("use ").and_then(|(_, call)| call.split_once(' ')) else {
            return of(".step".to_owned(), Act::Say("I call nothing.".to_owned()));
        };
        let (arguments, _) = leading_json(rest);
        of(".step".to_owned(), Act::Call { name: name.to_owned(), arguments: arguments.to_string() })
    }

    /// Whether `text` carries a script.
    pub fn is_in(text: &str) -> bool {
        text.contains("[[")
    }

    /// Reads the script in `text`; panics on one that cannot be read, because then the test is wrong.
    pub fn parse(text: &str) -> Self {
        let mut script = Self { id: String::new(), choice: None, rounds: vec![Vec::new()] };
        let mut rest = text;
        while let Some(at) = rest.find("[[") {
            rest = &rest[at + 2..];
            let word_end = rest.find([':', ']']).unwrap();
            let word = &rest[..word_end];
            if word == "call" {
                rest = &rest[word_end + 1..];
                let name_end = rest.find([' ', ']']).unwrap();
                let name = rest[..name_end].to_owned();
                rest = &rest[name_end..];
                let (arguments, used) = leading_json(rest);
                rest = &rest[used..];
                script.rounds.last_mut().unwrap().push(Act::Call { name, arguments: arguments.to_string() });
                continue;
            }
            let close = rest.find("]]").unwrap();
            let value = rest[..close].split_once(':').map_or("", |(_, value)| value).to_owned();
            rest = &rest[close + 2..];
            let act = match word {
                "id" => {
                    script.id = value;
                    continue;
                }
                "choose" => {
                    script.choice = Some(value);
                    continue;
                }
                "wrote" => {
                    let (name, arguments) = value.split_once(' ').unwrap();
                    Act::Call { name: name.to_owned(), arguments: arguments.to_owned() }
                }
                "next" => {
                    script.rounds.push(Vec::new());
                    continue;
                }
                "text" => Act::Text(pair(&value).0, pair(&value).1),
                "reason" => Act::Reason(pair(&value).0, pair(&value).1),
                "say" => Act::Say(value),
                "cite" => Act::Cite(value),
                "hold" => Act::Hold,
                "cut" => Act::Cut,
                "end" => Act::End,
                "status" => Act::Status(value.parse().unwrap()),
                "flaky" => Act::Flaky(pair(&value).0, u16::try_from(pair(&value).1).unwrap()),
                "mute" => Act::Mute(value.parse().unwrap()),
                "or" => Act::Or,
                other => panic!("no such word in a script: {other}"),
            };
            script.rounds.last_mut().unwrap().push(act);
        }
        script
    }
}

fn leading_json(text: &str) -> (Value, usize) {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match stream.next() {
        Some(Ok(value)) => {
            let used = stream.byte_offset();
            (value, used)
        }
        Some(Err(_)) | None => (Value::Object(serde_json::Map::new()), 0),
    }
}

fn pair(value: &str) -> (usize, u64) {
    let (count, pause) = value.split_once(',').unwrap_or((value, "0"));
    (count.trim().parse().unwrap(), pause.trim().parse().unwrap())
}
