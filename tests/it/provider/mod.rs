//! The model clients against a provider that plays bytes.

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
mod quirks;
mod refusals;
mod requests;
mod responses;
mod rows;
mod stream;
mod thoughts;
