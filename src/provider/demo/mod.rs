//! The offline model `demo/demo`: no key, no network, the same answer to the same question. Must not know real providers.
//!
//! Shows a newcomer streaming, parallel tool calls, cancellation and resumption, and says that it is a demonstration.

mod answer;
mod client;
mod intent;

pub use self::client::DemoClient;
