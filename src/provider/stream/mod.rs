//! Streamed answers: the code that all dialects share between frames and events of the model.
//!
//! Owns the decoder, the answer assembler, the stop reasons, the usage and the lenient JSON types. Must not know a dialect, the
//! construction of a request, or HTTP.
mod assembler;
mod decoder;
mod events;
mod json_shape;
pub(super) mod lenient;
mod reasoning_tags;
mod split_events;
mod stop_reasons;
mod usage;

pub(super) use self::assembler::{AnswerAssembler, incomplete};
pub(super) use self::decoder::{AnswerDecoder, is_cut, reported};
pub(super) use self::decoder::{StopReasonPlacement, StreamAdapter};
pub(super) use self::events::Events;
pub(super) use self::json_shape::Shape;
pub(super) use self::reasoning_tags::{ReasoningTags, SplitText};
pub(super) use self::stop_reasons::{StopReason, finish_of_stop_reason, read_stop_reason, unknown_stop_reason};
pub(super) use self::usage::ReportedUsage;
