//! The model clients against a provider that plays bytes.

mod calls;
mod drive;
mod failures;
mod framing;
mod limits;
mod requests;
mod stream;
