//! Decodes the frames of an answer, or an answer in one piece, with the adapter of its dialect.

use std::collections::VecDeque;

use serde::de::IgnoredAny;
use serde_json::Value;

use crate::domain::model::{ModelError, ModelEvent, ModelFinish};
use crate::provider::errors::failure;
use crate::provider::stream::assembler::{AnswerAssembler, incomplete};
use crate::provider::stream::lenient::without_unpaired_surrogates;
use crate::provider::stream::split_events;

/// The mark that ends a stream of events.
const END_MARK: &str = "[DONE]";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Open,
    /// The first event with content had a stop reason and usage. If no event follows, the answer has ended; more content revokes the
    /// reason.
    MayContinue,
    /// The stop reason has arrived; usage and an end mark may follow.
    Closing,
    /// The end mark has arrived.
    Complete,
}

#[derive(Debug)]
pub(in crate::provider) struct AnswerDecoder<A> {
    adapter: A,
    answer: AnswerAssembler,
    /// Whether an event had content and no stop reason was known after it.
    continues_without_reason: bool,
    /// Whether content followed a stop reason.
    continued_after_reason: bool,
}

/// Returns the failure that an error event reports.
pub(in crate::provider) fn reported(data: &str) -> ModelError {
    let error = serde_json::from_str(data).unwrap_or_else(|_| Value::String(data.to_owned()));
    failure::from_event(&error)
}

/// Returns whether a JSON document is incomplete.
pub(in crate::provider) fn is_cut(json: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(json).is_err_and(|error| error.is_eof())
}

/// Removes text that may surround a JSON document.
fn trimmed(data: &str) -> &str {
    data.trim_start_matches('\u{feff}').trim()
}

impl<A: StreamAdapter> AnswerDecoder<A> {
    pub(in crate::provider) fn new(adapter: A, answer: AnswerAssembler) -> Self {
        Self { adapter, answer, continues_without_reason: false, continued_after_reason: false }
    }

    /// Decodes one event of a streamed answer. No event follows an error.
    pub(super) fn frame(&mut self, name: Option<&str>, data: &str) -> Result<Progress, ModelError> {
        self.answer.frames += 1;
        let data = trimmed(data);
        if data.is_empty() {
            return Ok(self.progress());
        }
        if data == END_MARK {
            self.adapter.end_mark(&mut self.answer)?;
            return Ok(self.progress());
        }
        let data = without_unpaired_surrogates(data);
        if name == Some("error") {
            return Err(reported(&data));
        }
        let had_finish = self.answer.finish.is_some();
        let before = (self.answer.ready.len(), self.adapter.held_bytes());
        self.adapter.event(name.unwrap_or_default(), &data, &mut self.answer)?;
        let has_content = (self.answer.ready.len(), self.adapter.held_bytes()) != before;
        Ok(self.progress_after(has_content, had_finish))
    }

    /// Decodes an answer in one piece. A list with one item counts as that item; a longer list contains the events of a stream.
    pub(in crate::provider) fn document(&mut self, document: &[u8]) -> Result<(), ModelError> {
        let text = trimmed(std::str::from_utf8(document).unwrap_or_default());
        match split_events::list(text).as_deref() {
            None => self.one_document(document)?,
            Some([only]) => self.one_document(only.as_bytes())?,
            Some(events) => {
                for event in events {
                    if self.frame(None, event)? == Progress::Complete {
                        break;
                    }
                }
            }
        }
        self.close()
    }

    fn one_document(&mut self, document: &[u8]) -> Result<(), ModelError> {
        self.answer.frames += 1;
        let text = std::str::from_utf8(document).map_err(|error| self.answer.bad_frame(&error.to_string()))?;
        let text = without_unpaired_surrogates(trimmed(text));
        let read = self.adapter.document(&text, &mut self.answer);
        read.map_err(|error| if is_cut(&text) { incomplete("the answer was cut") } else { error })
    }

    /// Ends an answer with its usage and [`ModelEvent::Finished`], or fails if the answer is incomplete.
    pub(super) fn close(&mut self) -> Result<(), ModelError> {
        let finish = self.adapter.finish(&mut self.answer)?;
        self.answer.end(finish);
        Ok(())
    }

    pub(super) fn next_event(&mut self) -> Option<ModelEvent> {
        self.answer.ready.pop_front()
    }

    /// Returns the events that were not consumed yet.
    pub(in crate::provider) fn into_events(self) -> VecDeque<ModelEvent> {
        self.answer.ready
    }

    fn progress(&self) -> Progress {
        match (self.answer.is_ended, self.answer.finish) {
            (true, _) => Progress::Complete,
            (false, Some(_)) => Progress::Closing,
            (false, None) => Progress::Open,
        }
    }

    /// Returns the progress after an event. Content after a stop reason revokes the reason. After the first event, it is still
    /// unknown whether content follows.
    fn progress_after(&mut self, has_content: bool, had_finish: bool) -> Progress {
        let has_more = has_content && had_finish;
        self.continued_after_reason = match A::STOP_REASON_PLACEMENT {
            StopReasonPlacement::Final => return self.progress(),
            StopReasonPlacement::WithEveryEvent => has_more,
            StopReasonPlacement::Anywhere => self.continued_after_reason || has_more,
        };
        let finish = self.answer.finish;
        self.continues_without_reason |= has_content && finish.is_none();
        let may_continue = self.continued_after_reason || (has_content && !self.continues_without_reason);
        match may_continue && !self.answer.is_message {
            true if finish.is_some() && !self.continued_after_reason && self.answer.usage.is_reported() => Progress::MayContinue,
            true => Progress::Open,
            false => self.progress(),
        }
    }
}

/// When a stop reason of a dialect is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::provider) enum StopReasonPlacement {
    /// A stop reason ends the answer.
    Final,
    /// Some models send a reason with every event. An event with content after a reason revokes it.
    WithEveryEvent,
    /// Some gateways send a reason between any two events. After the first revoked one, a reason counts only at the end of the stream.
    Anywhere,
}

/// Converts the JSON documents of one dialect into deltas of an answer.
pub(in crate::provider) trait StreamAdapter: Send + Unpin + 'static {
    const STOP_REASON_PLACEMENT: StopReasonPlacement = StopReasonPlacement::Final;

    /// Accepts one event of a stream. `name` is the type of its frame, or empty. No event follows an error.
    fn event(&mut self, name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError>;

    /// Accepts a complete answer that was not streamed.
    fn document(&mut self, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        self.event("", json, answer)
    }

    /// Accepts the end mark `[DONE]`. A dialect whose answers end in another way may ignore the mark, as Gemini does, or fail.
    fn end_mark(&mut self, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
        answer.is_ended = true;
        Ok(())
    }

    /// Returns the bytes that have arrived and are not emitted yet. A change shows that an event had content.
    fn held_bytes(&self) -> usize {
        0
    }

    /// Emits the held-back content of an answer that has ended, or fails if the answer is incomplete.
    fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError>;
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::domain::model::ModelErrorKind::{BadStream, IncompleteStream};
    use crate::domain::model::ModelFinish;
    use crate::provider::stream::ReportedUsage;

    /// Takes `{}` as text, and other JSON as a stop reason, with text if it is a list.
    struct TestAdapter<const REASONS: char>;

    impl<const REASONS: char> StreamAdapter for TestAdapter<REASONS> {
        const STOP_REASON_PLACEMENT: StopReasonPlacement = match REASONS {
            'f' => StopReasonPlacement::Final,
            'e' => StopReasonPlacement::WithEveryEvent,
            _ => StopReasonPlacement::Anywhere,
        };

        fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
            if json != "1" {
                answer.text("x".into());
            }
            if json != "{}" {
                answer.stop(ModelFinish::Stop);
            }
            Ok(())
        }

        fn finish(&mut self, answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
            answer.finish.ok_or_else(|| incomplete("no reason"))
        }
    }

    fn progress<const REASONS: char>(frames: &[&str], answer: AnswerAssembler) -> Vec<Progress> {
        let mut decoder = AnswerDecoder::new(TestAdapter::<REASONS>, answer);
        frames.iter().map(|frame| decoder.frame(None, frame).unwrap()).collect()
    }

    #[rstest]
    #[case::reason_ends_the_text(&["{}", "1"], [Progress::Closing; 3])]
    #[case::text_revokes_the_reason(&["[1]", "[1]"], [Progress::Closing, Progress::Open, Progress::Open])]
    #[case::bare_reason_after_a_revoked_one(&["[1]", "[1]", "1"], [Progress::Closing, Progress::Closing, Progress::Open])]
    fn reason_is_believed_as_the_dialect_says(#[case] frames: &[&str], #[case] expected: [Progress; 3]) {
        let answer = || AnswerAssembler::new(None, 0);
        let last = |progress: Vec<Progress>| progress.last().copied();
        assert_eq!(
            [
                last(progress::<'f'>(frames, answer())),
                last(progress::<'e'>(frames, answer())),
                last(progress::<'a'>(frames, answer())),
            ],
            expected.map(Some)
        );
    }

    #[test]
    fn first_event_with_reason_and_usage_may_go_on() {
        let mut answer = AnswerAssembler::new(None, 0);
        assert_eq!(progress::<'a'>(&["[1]"], AnswerAssembler::new(None, 0)), [Progress::Open]);
        answer.add_usage(ReportedUsage { input: Some(1), output: Some(1), ..ReportedUsage::default() });
        assert_eq!(progress::<'a'>(&["[1]"], answer), [Progress::MayContinue]);
    }

    #[test]
    fn end_mark_between_blanks_ends_the_answer() {
        let frames = ["", "\u{feff} [DONE]\n"];
        assert_eq!(progress::<'f'>(&frames, AnswerAssembler::new(None, 0)), [Progress::Open, Progress::Complete]);
    }

    #[test]
    fn cut_document_is_incomplete() {
        struct Failing;
        impl StreamAdapter for Failing {
            fn event(&mut self, _name: &str, json: &str, answer: &mut AnswerAssembler) -> Result<(), ModelError> {
                answer.parse::<Value>(json).map(|_| ())
            }

            fn finish(&mut self, _answer: &mut AnswerAssembler) -> Result<ModelFinish, ModelError> {
                Ok(ModelFinish::Stop)
            }
        }
        let kind = |document: &str| {
            AnswerDecoder::new(Failing, AnswerAssembler::new(None, 0)).document(document.as_bytes()).map_err(|error| error.kind)
        };
        assert_eq!([kind("{}"), kind("{\"a\":"), kind("[1]")], [Ok(()), Err(IncompleteStream), Err(BadStream)]);
    }
}
