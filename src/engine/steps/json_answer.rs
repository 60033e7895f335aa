//! Answers that must be JSON. Without schema support of the provider, models put the JSON into a code fence, or between other text.

use serde::de::IgnoredAny;

use crate::domain::agent::OutputMode;
use crate::domain::conversation::{Message, Part};
use crate::domain::model::{MalformedAnswer, ModelFinish};
use crate::engine::calls::json_repair::unfenced;
use crate::engine::machine::DecisionBuilder;
use crate::engine::strategy::hooks::Answer;
use crate::support::text::prefix_chars;

/// Characters of an answer that are quoted to the model.
const QUOTED_CHARS: usize = 300;

/// Removes a code fence around an answer for which a schema is set, and marks one that is no JSON as malformed. An answer that was
/// cut or refused stays as it is, and its finish reason says so.
pub fn enforce_schema(decision: &mut DecisionBuilder<'_>, mut answer: Answer) -> Answer {
    let profile = decision.profile();
    let is_whole = matches!(answer.turn.finish, ModelFinish::Stop | ModelFinish::ToolCalls) && answer.turn.malformed.is_none();
    // In structured output, the answer assembler has already read the JSON.
    let is_wanted = profile.options.output_schema.is_some() && profile.output == OutputMode::Tools;
    let has_calls = !decision.progress.counters.force_final && answer.message.tool_calls().next().is_some();
    let text = answer.message.text();
    if !is_wanted || !is_whole || has_calls || text.trim().is_empty() {
        return answer;
    }
    let Err(error) = serde_json::from_str::<IgnoredAny>(&text) else { return answer };
    let inner = unfenced(&text);
    if inner.len() < text.len() && serde_json::from_str::<IgnoredAny>(inner).is_ok() {
        replace_text(&mut answer.message, inner);
        decision.reset(answer.step, "unfenced");
        decision.show(&answer.message);
        answer.closing.clear();
        return answer;
    }
    let quoted = prefix_chars(text.trim(), QUOTED_CHARS).to_owned();
    answer.turn.malformed = Some(MalformedAnswer { reason: error.to_string(), quoted });
    answer
}

/// Makes the first text part hold the whole text.
fn replace_text(message: &mut Message, text: &str) {
    let mut whole = Some(text.to_owned());
    message.parts.retain_mut(|part| match part {
        Part::Text(part) => whole.take().map(|text| part.text = text).is_some(),
        _ => true,
    });
}
