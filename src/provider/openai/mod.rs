//! OpenAI's chat completions, which most providers and local servers speak in their own accents.
//!
//! Facts about the wire: <https://platform.openai.com/docs/api-reference/chat>. The accents that are understood stand beside
//! the code that understands them.

mod calls;
mod client;
mod decode;
mod request;
mod wire;

pub use self::client::{OpenAiClient, OpenAiOptions};
