//! Helps the fuzzers. `checks.rs` has their checks: it is compiled as `provider::fuzzing` of the server.

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
