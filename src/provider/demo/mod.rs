//! The offline model `demo/demo`: no key, no network, the same answer to the same question.
//!
//! It lets a newcomer see streaming, parallel tool calls, cancelling and resuming at work, and says that it is a demonstration.

mod answer;
mod client;
mod intent;

pub use self::client::DemoClient;
