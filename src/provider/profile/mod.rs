//! Model profiles: what a model does not accept, by the configuration and by refusals of its provider.
//!
//! Owns the limitations of models, how they change requests, and how long learned ones are kept. `errors/refusals.rs` recognises
//! refusals. Must not know any dialect.

mod fields;
mod learn_limitation;
mod learned_limitations;
mod limitation;
mod model_profile;
mod tools;
mod unsupported_parts;

pub(in crate::provider) use self::learn_limitation::{Attempt, LearnedChange, limitation_from_refusal};
pub(in crate::provider) use self::learned_limitations::LearnedLimitations;
pub use self::learned_limitations::{LimitationStore, ProviderLimitationStore};
pub(in crate::provider) use self::limitation::Limitation;
pub(in crate::provider) use self::model_profile::{BodyForm, ModelProfile};
pub(in crate::provider) use self::unsupported_parts::may_be_refused;
