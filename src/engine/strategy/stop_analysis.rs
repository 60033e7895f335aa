//! Stop analysis: detects that an answer leaves work undone, deflects, or claims a change that was not made. Compares the answer
//! with lists of phrases from the agent. Must not know the consequence for the run.

use std::sync::Arc;

use crate::domain::agent::{PhraseListName, StopAnalysisSettings};
use crate::domain::conversation::{Message, MessageStatus, Role};
use crate::domain::ids::RunId;
use crate::domain::model::ModelFinish;
use crate::domain::tool::{ASK_USER, ReplayClass, ToolCallState, ToolDefinition};
use crate::engine::machine::DecisionBuilder;
use crate::engine::offer::usable::usable_tools;
use crate::engine::prompts;
use crate::support::search_words::{contains_phrase, words};
use crate::support::text::prefix_chars;

/// Characters of an answer that are analysed.
const READ_CHARS: usize = 20_000;

/// An answer with a question mark and fewer characters than this counts as a question to the user.
const SHORT_QUESTION: usize = 300;

/// The maximum number of words between a claim ("I have") and its action ("saved").
const CLAIM_DISTANCE: usize = 4;

/// Why an answer does not end the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncompleteReason {
    /// The answer leaves work undone.
    Incomplete,
    /// The answer asks the user a question, offers help or refuses.
    Deflection,
}

/// Classifies an answer. A statement that all is done overrides the other phrases.
fn incomplete_reason(analysis: &StopAnalysisSettings, text: &str) -> Option<IncompleteReason> {
    let text = prefix_chars(text.trim(), READ_CHARS);
    let sentence = words(text);
    let says = |name: PhraseListName| analysis.phrases(name).iter().any(|phrase| contains_phrase(&sentence, &words(phrase)));
    if says(PhraseListName::Completion) {
        return None;
    }
    if analysis.incomplete > 0 && says(PhraseListName::Incomplete) {
        return Some(IncompleteReason::Incomplete);
    }
    let asks = text.contains(['?', '\u{ff1f}']);
    if analysis.deflection == 0 || (says(PhraseListName::Presentation) && !asks && !says(PhraseListName::Deferral)) {
        return None;
    }
    let is_short = asks && text.chars().count() < SHORT_QUESTION;
    (is_short || says(PhraseListName::Deflection)).then_some(IncompleteReason::Deflection)
}

/// Returns why the model must continue after a text answer, or `None` if the answer may end the run. Unless `before_success` is
/// set, only a run with a successful call can have stopped too early. The run's limits must allow another model call with tools.
pub fn nudge_reason(
    decision: &DecisionBuilder<'_>,
    message: &Message,
    finish: ModelFinish,
    is_last: bool,
) -> Option<IncompleteReason> {
    let (profile, record) = (decision.profile(), &decision.progress);
    let analysis = &profile.response_analysis;
    if (analysis.incomplete == 0 && analysis.deflection == 0) || profile.options.output_schema.is_some() {
        return None;
    }
    let has_worked = analysis.before_success || record.calls.iter().any(|call| call.state == ToolCallState::Done);
    let may_work = !is_last
        && finish == ModelFinish::Stop
        && record.counters.rounds < profile.max_rounds
        && !decision.is_out_of_time()
        && !profile.is_spent(record.usage)
        && !decision.progress.has_unseen_messages()
        && !usable_tools(decision.tools(), record).is_empty();
    if !has_worked || !may_work {
        return None;
    }
    let reason = incomplete_reason(analysis, &message.text())?;
    let may_be_nudged = match reason {
        IncompleteReason::Incomplete => record.counters.continuations < analysis.incomplete,
        IncompleteReason::Deflection => {
            let most = analysis.deflection_calls as usize;
            // A model may ask the user a question after a human has denied a call.
            let was_denied = record.calls.iter().any(|call| call.state == ToolCallState::Denied);
            !was_denied && record.counters.deflections < analysis.deflection && (most == 0 || record.calls.len() < most)
        }
    };
    may_be_nudged.then_some(reason)
}

/// Counts a nudge, and returns its text.
pub fn count_nudge(decision: &mut DecisionBuilder<'_>, reason: IncompleteReason) -> &'static str {
    let counters = decision.counters();
    let (counter, hint) = match reason {
        IncompleteReason::Incomplete => (&mut counters.continuations, prompts::CONTINUE_WORK),
        IncompleteReason::Deflection => (&mut counters.deflections, prompts::CONTINUE_WITHOUT_QUESTIONS),
    };
    *counter = counter.saturating_add(1);
    hint
}

/// Returns whether a sentence of a text claims a change. Questions and negated sentences claim none.
fn claims_change(analysis: &StopAnalysisSettings, text: &str) -> bool {
    let list = |name: PhraseListName| -> Vec<Vec<String>> { analysis.phrases(name).iter().map(|phrase| words(phrase)).collect() };
    let (claims, actions, negations) = (list(PhraseListName::Claim), list(PhraseListName::Action), list(PhraseListName::Negation));
    let any_in = |words_of_sentence: &[String], phrases: &[Vec<String>]| {
        phrases.iter().any(|phrase| contains_phrase(words_of_sentence, phrase))
    };
    prefix_chars(text, READ_CHARS)
        .split_inclusive(['.', '!', '?', ';', '\n', '\u{3002}', '\u{ff1f}', '\u{ff01}'])
        .filter(|sentence| !sentence.ends_with(['?', '\u{ff1f}']))
        .map(words)
        .filter(|words_of_sentence| !any_in(words_of_sentence, &negations))
        .any(|words_of_sentence| {
            (0..words_of_sentence.len()).any(|at| {
                let rest = &words_of_sentence[at..];
                let made = claims.iter().filter(|claim| !claim.is_empty() && rest.starts_with(claim));
                let mut after = made.map(|claim| &rest[claim.len()..]);
                after.any(|after| {
                    let reached = actions.iter().map(|action| (action, CLAIM_DISTANCE + action.len()));
                    reached.into_iter().any(|(action, reach)| contains_phrase(&after[..reach.min(after.len())], action))
                })
            })
        })
}

/// Returns whether a call may have changed anything. Calls with an unknown outcome, or of unknown tools, may have.
fn may_have_changed(name: &str, state: ToolCallState, is_error: bool, tools: &[Arc<ToolDefinition>]) -> bool {
    let may_have_acted = match state {
        ToolCallState::Done => !is_error,
        ToolCallState::Unknown => true,
        _ => false,
    };
    let changes_nothing =
        |tool: &Arc<ToolDefinition>| tool.replay == ReplayClass::Read || (tool.server.is_none() && tool.tool == ASK_USER);
    may_have_acted && !tools.iter().find(|tool| tool.name == name).is_some_and(changes_nothing)
}

/// Returns whether messages contain results of calls that may have changed anything.
fn has_changed_something<'m>(messages: impl Iterator<Item = &'m Message>, tools: &[Arc<ToolDefinition>]) -> bool {
    messages.flat_map(Message::tool_results).any(|result| may_have_changed(&result.name, result.state, result.is_error, tools))
}

/// Returns whether the messages of a run end with a claim of a change that was not made.
fn ends_with_false_claim(analysis: &StopAnalysisSettings, messages: &[&Message], tools: &[Arc<ToolDefinition>]) -> bool {
    let answer = messages.iter().rfind(|message| message.role == Role::Assistant && !message.internal);
    answer.is_some_and(|answer| answer.status == MessageStatus::Complete && claims_change(analysis, &answer.text()))
        && !has_changed_something(messages.iter().copied(), tools)
}

fn messages_of_run<'m>(history: &'m [Message], run: &RunId) -> Vec<&'m Message> {
    let mut messages: Vec<_> = history.iter().rev().skip_while(|message| message.run_id != *run).collect();
    messages.truncate(messages.iter().take_while(|message| message.run_id == *run).count());
    messages.reverse();
    messages
}

/// Returns whether the run ends with a claim of a change that was not made.
pub fn run_ends_with_false_claim(decision: &DecisionBuilder<'_>) -> bool {
    let analysis = &decision.profile().response_analysis;
    if !analysis.claims {
        return false;
    }
    // Older messages of the run may not be loaded; the rows of its calls are.
    let has_changed = decision.progress.calls.iter().any(|call| {
        let is_error = call.outcome.as_ref().is_some_and(|outcome| outcome.is_error);
        may_have_changed(&call.name, call.state, is_error, decision.tools())
    });
    if has_changed {
        return false;
    }
    let run = &decision.before.fence.run_id;
    let mut messages = messages_of_run(&decision.before.history, run);
    messages.extend(&decision.progress.history);
    ends_with_false_claim(analysis, &messages, decision.tools())
}

/// Adds a hint if the previous run ended with a claim of a change that was not made, since the model would build on it.
pub fn correct_claim(decision: &mut DecisionBuilder<'_>) {
    let (record, analysis) = (decision.before, &decision.profile().response_analysis);
    let own = &record.fence.run_id;
    let Some(before) = record.history.iter().rfind(|message| message.run_id != *own).filter(|_| analysis.claims) else { return };
    let messages = messages_of_run(&record.history, &before.run_id);
    // If the run's beginning is not loaded, its changes are unknown.
    let is_whole = messages.first().is_some_and(|message| message.is_from_user());
    if is_whole && ends_with_false_claim(analysis, &messages, decision.tools()) {
        decision.hint(prompts::FALSE_CLAIM);
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn both() -> StopAnalysisSettings {
        StopAnalysisSettings { incomplete: 3, deflection: 3, claims: true, ..StopAnalysisSettings::default() }
    }

    #[rstest]
    #[case("I've renamed 3 files. There are 4 remaining.", Some(IncompleteReason::Incomplete))]
    #[case("Done with that one; moving on to screenshot four", Some(IncompleteReason::Incomplete))]
    #[case("Now I will process the invoice.", Some(IncompleteReason::Incomplete))]
    #[case("I\u{2019}ll continue with the others.", Some(IncompleteReason::Incomplete))]
    #[case("All screenshots have been renamed; nothing is remaining.", None)]
    #[case("All done! Let me know if you need anything else.", None)]
    #[case("Here is what I did: renamed 3 files, 4 remaining ones were fine.", None)]
    #[case("I can't do that.", Some(IncompleteReason::Deflection))]
    #[case("I don't have access to your files.", Some(IncompleteReason::Deflection))]
    #[case("What should I call the file?", Some(IncompleteReason::Deflection))]
    #[case("Is blue fine?", Some(IncompleteReason::Deflection))]
    #[case("Let me know how to go on.", Some(IncompleteReason::Deflection))]
    #[case("I found 3 invoices. The options are in the file.", None)]
    #[case("I found 3 invoices. Which one?", Some(IncompleteReason::Deflection))]
    #[case("I found 3 invoices. Let me know what to do with them.", Some(IncompleteReason::Deflection))]
    #[case("The invoice is of the 3rd of May.", None)]
    #[case("It remains warm.", None)]
    #[case("", None)]
    fn words_tell_how_far_the_work_is(#[case] text: &str, #[case] expected: Option<IncompleteReason>) {
        assert_eq!(incomplete_reason(&both(), text), expected, "{text}");
        assert_eq!(incomplete_reason(&StopAnalysisSettings::default(), text), None);
    }

    #[test]
    fn only_short_questions_are_for_the_user() {
        let long = format!("{} Is it?", "word ".repeat(60));
        assert_eq!(incomplete_reason(&both(), &long), None);
        assert_eq!(incomplete_reason(&both(), &long[20..]), Some(IncompleteReason::Deflection));
    }

    #[rstest]
    #[case("I have updated the page.", true)]
    #[case("I've now successfully renamed it!", true)]
    #[case("Sure. The title has been changed.", true)]
    #[case("The page is now published.", true)]
    #[case("I updated the page", true)]
    #[case("I have not updated the page.", false)]
    #[case("The page hasn't been saved.", false)]
    #[case("Shall I have the page deleted?", false)]
    #[case("Has it been saved? I have no idea.", false)]
    #[case("I could have the page updated.", false)]
    #[case("The page was created in May.", false)]
    #[case("I read the whole page, from the top to the end, and the author says it was updated.", false)]
    #[case("", false)]
    fn a_claim_is_a_deed_close_behind_its_word(#[case] text: &str, #[case] claims: bool) {
        assert_eq!(claims_change(&both(), text), claims, "{text}");
    }
}
