//! The model's script in a case.

use serde_json::json;

use super::kill_points::{Often, Scenario};
use support::chance::Chance;

/// A message with its script.
pub struct Turn {
    pub input: String,
    /// The model's calls, by round.
    pub rounds: Vec<Vec<Call>>,
}

/// A call of the model, identified by its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The tool of the ledger.
    pub tool: &'static str,
    pub text: String,
}

pub const ID: &str = "matrix";

/// Milliseconds that a slow tool takes to answer after it has acted.
const SLOW_MS: u64 = 300;

/// The same for a tool that answers only after it is cancelled.
const ENDLESS_MS: u64 = 30_000;

/// The first answer of the model, truncated after a call.
const CUT_CALL: &str = r#"[[text:3,0]][[call:ledger__append {"text":"cut"}]][[end]][[or]]"#;

/// The number of words of the last answer.
pub const LAST_WORDS: usize = 12;

impl Turn {
    /// Returns the script of a scenario. Seed 0 always has the same two rounds of every replay class, one of them parallel.
    pub fn new(id: &str, scenario: Scenario, seed: u64, chance: &mut Chance) -> Self {
        let (opening, rounds) = match scenario {
            Scenario::Turn | Scenario::Takeover | Scenario::Summary if seed == 0 => ("", classic("append")),
            Scenario::SlowTools if seed == 0 => ("", classic("slow_append")),
            Scenario::Turn | Scenario::Takeover | Scenario::Summary => ("", any_rounds(id, "append", chance)),
            Scenario::SlowTools => ("", any_rounds(id, "slow_append", chance)),
            Scenario::Retry => ("[[flaky:1,503]]", Vec::new()),
            Scenario::CutCall => (CUT_CALL, Vec::new()),
            Scenario::Approval => ("", vec![vec![named("append", "one"), named("lookup", "two")]]),
            Scenario::Cancel | Scenario::Delete => ("[[text:2,0]][[hold]]", Vec::new()),
            Scenario::Rotation => ("", Vec::new()),
            Scenario::CancelTool => ("", vec![vec![Call { tool: "slow_append", text: "endless".to_owned() }]]),
        };
        let opening = match scenario {
            Scenario::Takeover => "[[text:2,0]][[hold]]",
            _ => opening,
        };
        let slow = if scenario == Scenario::CancelTool { ENDLESS_MS } else { SLOW_MS };
        let pause = if seed == 0 { 4 } else { chance.between(0, 15) };
        let mut input = format!("[[id:{id}]]{opening}");
        for (index, round) in rounds.iter().enumerate() {
            if index > 0 || scenario != Scenario::Takeover {
                input.push_str(&format!("[[text:3,{}]]", pause / 2));
            }
            for call in round {
                let arguments = match call.tool {
                    "append_keyed" => json!({"text": call.text, "key": "from the model"}),
                    "slow_append" => json!({"text": call.text, "ms": slow}),
                    _ => json!({"text": call.text}),
                };
                input.push_str(&format!("[[call:ledger__{} {arguments}]]", call.tool));
            }
            input.push_str("[[next]]");
        }
        input.push_str(&format!("[[text:{LAST_WORDS},{pause}]]"));
        Self { input, rounds }
    }

    /// Returns the number of tool calls.
    pub fn calls(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Returns how often the run reaches a point.
    pub fn times(&self, often: Often) -> usize {
        match often {
            Often::At(_) => 1,
            Often::Twice => 2,
            Often::Answers => self.rounds.len() + 1,
            Often::LaterAnswers => self.rounds.len(),
            Often::Calls => self.calls(),
            Often::Siblings => self.rounds.iter().map(|round| round.len() - 1).sum(),
        }
    }
}

fn named(tool: &'static str, text: &str) -> Call {
    Call { tool, text: text.to_owned() }
}

fn classic(append: &'static str) -> Vec<Vec<Call>> {
    vec![vec![named(append, "one"), named("append_keyed", "two"), named("lookup", "three")], vec![named(append, "four")]]
}

/// Returns one to three rounds of one to four calls, the first of at least two.
fn any_rounds(id: &str, append: &'static str, chance: &mut Chance) -> Vec<Vec<Call>> {
    let rounds = chance.between(1, 3);
    let round = |index, chance: &mut Chance| {
        let calls = chance.between(if index == 0 { 2 } else { 1 }, 4);
        let call = |place| named(chance.pick(&[append, append, "append_keyed", "lookup"]), &format!("{id} {index} {place}"));
        (0..calls).map(call).collect()
    };
    (0..rounds).map(|index| round(index, chance)).collect()
}
