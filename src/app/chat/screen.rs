//! Converts the events of a run to text for the terminal.

use serde_json::Value;

use super::questions::{Question, items};
use super::safe_text::brief;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    Completed,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ScreenUpdate {
    /// A piece of the answer, for standard output.
    Answer(String),
    /// A remark on a separate line, for standard error.
    Remark(String),
    Question(Question),
    /// The question with this id is no longer open.
    QuestionClosed(String),
    Nothing,
    /// The end of the run, with an optional remark.
    End(RunOutcome, Option<String>),
}

#[derive(Debug, Default)]
pub struct Screen {
    /// The parts with displayed deltas: neither reasoning nor raw arguments.
    text_parts: Vec<String>,
    /// The context use of the last model call as text.
    context: Option<String>,
}

impl Screen {
    /// Applies an event envelope. Ignores unknown types.
    pub fn show(&mut self, event: &Value) -> ScreenUpdate {
        let data = &event["data"];
        let word = |key: &str| data[key].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "part.started" => {
                if word("kind") == "text" {
                    self.text_parts.push(word("part_id").to_owned());
                }
                ScreenUpdate::Nothing
            }
            "part.delta" if self.text_parts.iter().any(|part| part == word("part_id")) => {
                ScreenUpdate::Answer(word("delta").to_owned())
            }
            "tool.started" => ScreenUpdate::Remark(format!("-> {} {}", word("name"), brief(&data["arguments"].to_string()))),
            "tool.completed" => {
                let mark = if data["is_error"].as_bool().unwrap_or_default() { "!!" } else { "<-" };
                let took = data["duration_ms"].as_u64().unwrap_or_default();
                ScreenUpdate::Remark(format!("{mark} {} {} ({took} ms)", word("name"), brief(&content_text(&data["content"]))))
            }
            "tool.outcome_unknown" => {
                ScreenUpdate::Remark(format!("?? {}: outcome unknown, it may or may not have taken effect", word("name")))
            }
            "approval.requested" => ScreenUpdate::Question(Question::approval(data)),
            "input.requested" => ScreenUpdate::Question(Question::input(data)),
            "approval.resolved" | "input.resolved" => ScreenUpdate::QuestionClosed(word("id").to_owned()),
            "plan.created" => {
                let steps = items(&data["steps"])
                    .iter()
                    .map(|step| format!("\n   {}. {}", step["step"], brief(step["description"].as_str().unwrap_or_default())));
                ScreenUpdate::Remark(format!("-- the plan:{}", steps.collect::<String>()))
            }
            "plan.step_started" => ScreenUpdate::Remark(format!("-- step {}", data["step"])),
            "step.reset" => ScreenUpdate::Remark(match word("reason") {
                reason @ ("failed" | "cancelled") => format!("-- {reason}: ignore the text above"),
                reason => format!("-- {reason}: the answer starts over"),
            }),
            "run.retrying" => {
                let seconds = data["after_ms"].as_u64().unwrap_or_default().div_ceil(1000);
                let cause = data["error"]["title"].as_str().unwrap_or_default();
                ScreenUpdate::Remark(match data["model"].as_str() {
                    Some(model) => format!("-- {cause}; continuing with {model}"),
                    None => format!("-- {cause}; retrying in {seconds} s"),
                })
            }
            "tool.quarantined" => {
                ScreenUpdate::Remark(format!("-- the model's provider refuses the tool {}: continuing without it", word("name")))
            }
            "model.adapted" => {
                ScreenUpdate::Remark(format!("-- {}: {} ({})", word("model"), word("change"), brief(word("reason"))))
            }
            "context.budget" => {
                let (used, window) = (data["used"].as_u64().unwrap_or_default(), data["window"].as_u64().unwrap_or_default());
                let percent = used.saturating_mul(100) / window.max(1);
                self.context = Some(format!("-- context: {used} of {window} {} ({percent}%)", brief(word("unit"))));
                ScreenUpdate::Nothing
            }
            "run.completed" => {
                let early = Some(word("finish_reason")).filter(|reason| !matches!(*reason, "" | "stop"));
                let early = early.map(|reason| format!("-- ended early: {reason}"));
                let remarks: Vec<String> = early.into_iter().chain(self.context.take()).collect();
                ScreenUpdate::End(RunOutcome::Completed, (!remarks.is_empty()).then(|| remarks.join("\n")))
            }
            "run.failed" => {
                let error = &data["error"];
                let (code, detail) = (error["code"].as_str().unwrap_or_default(), error["detail"].as_str().unwrap_or_default());
                ScreenUpdate::End(RunOutcome::Failed, Some(format!("!! {code}: {detail}")))
            }
            "run.cancelled" => ScreenUpdate::End(RunOutcome::Cancelled, Some("-- cancelled".to_owned())),
            _ => ScreenUpdate::Nothing,
        }
    }
}

fn content_text(content: &Value) -> String {
    items(content).iter().map(|part| part["text"].as_str().unwrap_or("[not text]")).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_run_with_a_tool_is_shown_in_order() {
        let event = |kind: &str, data: Value| json!({"seq": 1, "type": kind, "data": data});
        let mut screen = Screen::default();
        let shown: Vec<ScreenUpdate> = [
            event("part.started", json!({"part_id": "part_r", "kind": "reasoning"})),
            event("part.delta", json!({"part_id": "part_r", "delta": "hm"})),
            event("tool.started", json!({"name": "calculate", "arguments": {"expression": "17*23"}})),
            event("tool.completed", json!({"name": "calculate", "content": [{"type": "text", "text": "3\u{1b}[2J91"}], "is_error": false, "duration_ms": 2})),
            event("part.started", json!({"part_id": "part_t", "kind": "text"})),
            event("part.delta", json!({"part_id": "part_t", "delta": "It is 391."})),
            event("some.future_type", json!({})),
            event("input.requested", json!({"id": "input_1", "question": {"text": "Did\nit?", "choices": [{"value": "yes"}, {"value": "no"}]}})),
            event("run.completed", json!({"finish_reason": "stop"})),
        ]
        .iter()
        .map(|event| screen.show(event))
        .filter(|shown| *shown != ScreenUpdate::Nothing)
        .collect();
        let asked = Question::input(
            &json!({"id": "input_1", "question": {"text": "Did it?", "choices": [{"value": "yes"}, {"value": "no"}]}}),
        );
        assert_eq!(
            shown,
            [
                ScreenUpdate::Remark("-> calculate {\"expression\":\"17*23\"}".to_owned()),
                ScreenUpdate::Remark("<- calculate 3[2J91 (2 ms)".to_owned()),
                ScreenUpdate::Answer("It is 391.".to_owned()),
                ScreenUpdate::Question(asked),
                ScreenUpdate::End(RunOutcome::Completed, None),
            ]
        );
    }

    #[test]
    fn how_full_the_context_is_stands_at_the_end() {
        let event = |kind: &str, data: Value| json!({"seq": 1, "type": kind, "data": data});
        let mut screen = Screen::default();
        for used in [1_000, 2_048] {
            let budget = json!({"unit": "tokens", "window": 8_192, "used": used, "remaining": 3_000});
            assert_eq!(screen.show(&event("context.budget", budget)), ScreenUpdate::Nothing);
        }
        let ended = screen.show(&event("run.completed", json!({"finish_reason": "max_rounds"})));
        let words = "-- ended early: max_rounds\n-- context: 2048 of 8192 tokens (25%)";
        assert_eq!(ended, ScreenUpdate::End(RunOutcome::Completed, Some(words.to_owned())));
    }
}
