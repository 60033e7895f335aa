//! The model clients against a provider that plays bytes.

mod accents;
mod anthropic;
mod calls;
mod drive;
mod embeddings;
mod failures;
mod framing;
mod gemini;
mod limits;
mod moving;
mod mutants;
mod oddities;
mod ollama;
mod played;
mod refusals;
mod requests;
mod responses;
mod rows;
mod stream;
mod thoughts;
