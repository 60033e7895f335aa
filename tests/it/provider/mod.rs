//! The provider clients against a mock that plays recorded bytes.

mod anthropic;
mod calls;
mod drive;
mod embeddings;
mod failures;
mod framing;
mod gemini;
mod limits;
mod model_lists;
mod moving;
mod mutants;
mod oddities;
mod ollama;
mod played;
mod profiles;
mod quirks;
mod refusals;
mod requests;
mod responses;
mod rows;
mod stream;
mod thoughts;
