//! The cost of a stream in another protocol, compared with the native stream of the same run: processor time of the server for each
//! token, and the time to the first token.
//!
//! The measurement is `make bench-wires`. Rounds of all wires alternate, so that the machine's other work affects all alike.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::json;

use support::database::Kind;
use support::measure::{percentile, size};
use support::print_figure;
use support::server::{Server, Site};

/// Tokens of an answer, and the milliseconds between them: so slow that each token is an event of its own.
const TOKENS: usize = 200;
const PAUSE_MS: u64 = 10;
/// Runs under way at a time.
const RUNS: usize = 40;
/// The limit of processor time, as a multiple of that of the native stream.
const TIMES: f64 = 1.1;
/// The limit of the additional time to the first token.
const LATER: Duration = Duration::from_micros(300);

#[derive(Debug, Clone, Copy)]
enum Wire {
    Native,
    Responses,
    Chat,
    AiSdk,
    AgUi,
}

const WIRES: [Wire; 5] = [Wire::Native, Wire::Responses, Wire::Chat, Wire::AiSdk, Wire::AgUi];

impl Wire {
    /// Returns the request that starts a run under a new name, and streams it.
    fn request(self, server: &Server, name: &str, script: &str) -> RequestBuilder {
        match self {
            Self::Native => server.post("/runs", &json!({"input": script})).header("accept", "text/event-stream"),
            Self::Responses => server.post("//v1/responses", &json!({"model": "default", "input": script, "stream": true})),
            Self::Chat => {
                let messages = json!([{"role": "user", "content": script}]);
                server.post("//v1/chat/completions", &json!({"model": "default", "messages": messages, "stream": true}))
            }
            Self::AiSdk => {
                let message = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": script}]});
                server.post("//api/chat?v=7", &json!({"id": name, "messages": [message]}))
            }
            Self::AgUi => {
                let message = json!({"id": "m1", "role": "user", "content": script});
                server.post("//ag-ui/default", &json!({"threadId": name, "runId": name, "messages": [message]}))
            }
        }
    }

    /// Returns the processor time of the server for a token of a crowd of runs.
    async fn processor_time(self, server: &Server, round: usize) -> Duration {
        let before = server.processor_time();
        let runs = (0..RUNS).map(|run| async move {
            let name = format!("{self:?}-{round}-{run}");
            let answer = self.request(server, &name, &format!("[[id:{name}]][[text:{TOKENS},{PAUSE_MS}]]")).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{self:?}");
            let body = answer.text().await.unwrap();
            assert!(body.contains(&format!("t{} ", TOKENS - 1)), "{self:?}: {body}");
        });
        join_all(runs).await;
        (server.processor_time() - before) / u32::try_from(RUNS * TOKENS).unwrap()
    }

    /// Returns the time from a request to its first token.
    async fn first_token(self, server: &Server, round: usize) -> Duration {
        let name = format!("{self:?}-first-{round}");
        let began = Instant::now();
        let mut answer = self.request(server, &name, &format!("[[id:{name}]][[text:1,0]]")).send().await.unwrap();
        let (mut read, mut took) = (String::new(), None);
        while let Some(bytes) = answer.chunk().await.unwrap() {
            read.push_str(std::str::from_utf8(&bytes).unwrap());
            // The token ends its string; the script in the stream has no such text.
            if took.is_none() && read.contains("t0 \"") {
                took = Some(began.elapsed());
            }
        }
        took.unwrap_or_else(|| panic!("{self:?} without a token: {read}"))
    }
}

fn median(measured: &[Vec<Duration>], at: usize) -> Duration {
    percentile(&measured.iter().map(|round| round[at]).collect::<Vec<_>>(), 50)
}

#[tokio::test(flavor = "multi_thread")]
async fn other_protocols_cost_little_beside_the_native_stream() {
    let rounds = size("CAPSTAN_WIRE_ROUNDS", 3);
    let (model, site, server) = Site::serve(async |model| {
        let site = Site::scripted(Kind::Sqlite, model).await.env("CAPSTAN_LOG__LEVEL", "warn");
        site.env("CAPSTAN_WORKER__LEASE_MS", "60000").env("CAPSTAN_WORKER__SELF_STOP_MS", "50000")
    })
    .await;
    let (mut costs, mut firsts) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut cost = Vec::new();
        for wire in WIRES {
            cost.push(wire.processor_time(&server, round).await);
        }
        costs.push(cost);
        for first in 0..10 {
            let mut times = Vec::new();
            for wire in WIRES {
                times.push(wire.first_token(&server, round * 10 + first).await);
            }
            firsts.push(times);
        }
    }
    // A development build is not optimised, and a busy machine delays a token by more than the goal.
    let (times, later) = if cfg!(debug_assertions) { (TIMES * 2.0, LATER * 100) } else { (TIMES, LATER) };
    let (native_cost, native_first) = (median(&costs, 0), median(&firsts, 0));
    let mut missed = Vec::new();
    for (at, wire) in WIRES.iter().enumerate() {
        let (cost, first) = (median(&costs, at), median(&firsts, at));
        let ratio = cost.as_secs_f64() / native_cost.as_secs_f64();
        print_figure(&format!("{wire:?}: {cost:?} of processor time for a token, {ratio:.2} times; first token after {first:?}"));
        if ratio > times || first > native_first + later {
            missed.push(format!("{wire:?}: {ratio:.2} times, and {first:?} in place of {native_first:?}"));
        }
    }
    assert_eq!(missed, Vec::<String>::new());
    site.assert_sound(&model).await;
}
