//! Streamed answers: what all dialects share between the frames of an answer and the events of the model.
//!
//! Owns the decoder, the answer assembler, the words of finish reasons, the usage and the lenient readers of JSON. Must not know
//! which dialect it reads, how a request is made, or HTTP.

mod adapter;
mod assembler;
mod decoder;
mod events;
mod finish_reasons;
mod glued;
mod json_shape;
pub(super) mod lenient;
mod reasoning_tags;
mod usage;

pub(super) use self::adapter::{StopReasons, StreamAdapter};
pub(super) use self::assembler::{AnswerAssembler, incomplete};
pub(super) use self::decoder::{AnswerDecoder, is_cut, reported};
pub(super) use self::events::Events;
pub(super) use self::finish_reasons::{FinishReason, finish_reason, finish_without_calls, unknown_finish_reason};
pub(super) use self::json_shape::Shape;
pub(super) use self::reasoning_tags::{ReasoningTags, SplitText};
pub(super) use self::usage::TokenFigures;
