//! The server's modules that decide what a run does and that speak with providers, and what they stand on. See `src/provider/fuzzing.rs` for what is checked.
#![allow(dead_code, unused_imports, reason = "most of what is here is used by the rest of the server")]

#[path = "../../src/support/mod.rs"]
pub mod support;

#[path = "../../src/domain/mod.rs"]
pub mod domain;

#[path = "../../src/engine/mod.rs"]
pub mod engine;

#[path = "../../src/provider/mod.rs"]
pub mod provider;

pub use provider::fuzzing;

/// Runs `check` where timers can be made, as decoders do; none of them is waited for.
pub fn within_runtime(check: impl FnOnce()) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    }
    RUNTIME.with(|runtime| {
        let _within = runtime.enter();
        check();
    });
}
