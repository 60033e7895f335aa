//! The client's connection: sends the question, reads the stream, and reconnects with its cursor.

use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::StreamExt as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use sse_stream::SseByteStream;

use super::args::ChatArgs;
use super::questions::Question;
use super::safe_text::printable;
use super::screen::{RunOutcome, Screen, ScreenUpdate};
use super::terminal_input::Typing;
use crate::app::commands::healthcheck::reachable;
use crate::app::config::{Environment, Loaded};
use crate::support::net::http::client_for;

const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Longer than three pings of the server.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);

struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
}

/// Asks the question and shows the answer. The first interrupt cancels the run, the second one only ends the client.
pub async fn run(args: &ChatArgs, model: Option<&str>, loaded: &Loaded, environment: &Environment) -> anyhow::Result<ExitCode> {
    let url = args.url.clone().or_else(|| environment.get("CAPSTAN_URL").map(str::to_owned));
    let url = url.unwrap_or_else(|| format!("http://{}", reachable(loaded.config.server.listen)));
    let url = url.trim_end_matches('/').to_owned();
    let client = Client {
        http: client_for(&url).connect_timeout(Duration::from_secs(5)).build().context("the HTTP client cannot be built")?,
        url,
        key: args.key.clone().or_else(|| environment.get("CAPSTAN_KEY").map(str::to_owned)),
    };
    let mut body = json!({"input": args.question});
    let options = [("conversation_id", args.conversation.as_deref()), ("model", model), ("agent", args.agent.as_deref())];
    for (key, value) in options {
        if let Some(value) = value {
            body[key] = json!(value);
        }
    }
    if !args.file.is_empty() {
        let mut parts = vec![json!({"type": "text", "text": args.question})];
        for path in &args.file {
            parts.push(json!({"type": "file", "file_id": client.upload(path).await?}));
        }
        body["input"] = json!(parts);
    }
    let mut follower = Follower {
        client,
        screen: Screen::default(),
        run: None,
        conversation: None,
        cursor: None,
        at_line_start: true,
        questions: VecDeque::new(),
        typing: std::io::stdin().is_terminal().then(Typing::default),
    };
    let first = follower.client.ask(&body).await?;
    let ending = follower.follow(first).await?;
    if let Some(conversation) = &follower.conversation
        && std::io::stderr().is_terminal()
    {
        remark(&format!("-- to continue: capstan chat --conversation {conversation} \"...\""));
    }
    Ok(match ending {
        RunOutcome::Completed => ExitCode::SUCCESS,
        RunOutcome::Failed => ExitCode::FAILURE,
        RunOutcome::Cancelled => ExitCode::from(130),
    })
}

impl Client {
    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, reqwest::Error> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        request.send().await.map_err(reqwest::Error::without_url)
    }

    async fn ask(&self, body: &Value) -> anyhow::Result<reqwest::Response> {
        let request = self.http.post(format!("{}/api/v1/runs", self.url)).header("accept", "text/event-stream").json(body);
        let answer = self.send(request).await.map_err(|error| {
            if error.is_connect() {
                anyhow::anyhow!("no server answers at {}; start one with `capstan serve`, or name another with --url", self.url)
            } else {
                anyhow::Error::new(error).context("the question could not be sent")
            }
        })?;
        accepted(answer).await
    }

    async fn come_back(&self, run: &str, cursor: Option<&str>) -> Result<reqwest::Response, reqwest::Error> {
        let mut request = self.http.get(format!("{}/api/v1/runs/{run}/events", self.url)).header("accept", "text/event-stream");
        if let Some(cursor) = cursor {
            request = request.header("last-event-id", cursor);
        }
        self.send(request).await
    }

    /// Fetches the complete event if its frame was shortened. Returns any other event unchanged.
    async fn whole(&self, event: Value) -> anyhow::Result<Value> {
        // Text before `/api/v1/` belongs to the server's URL, which the client has already.
        let path = event["shortened"]["url"].as_str().and_then(|url| url.get(url.find("/api/v1/")?..));
        let Some(path) = path else { return Ok(event) };
        let request = self.http.get(format!("{}{path}", self.url)).header("accept", "application/json");
        let answer = accepted(self.send(request).await?).await?;
        let mut page: Value = answer.json().await.map_err(reqwest::Error::without_url)?;
        Ok(page["data"][0].take())
    }

    async fn upload(&self, path: &Path) -> anyhow::Result<String> {
        let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = utf8_percent_encode(&name, NON_ALPHANUMERIC);
        let request = self.http.post(format!("{}/api/v1/files?name={name}", self.url)).body(bytes);
        let request = request.header("content-type", "application/octet-stream");
        let sent = self.send(request).await.context("the file could not be sent")?;
        let answer = accepted(sent).await.with_context(|| path.display().to_string())?;
        let file: Value = answer.json().await.context("the server's response is not JSON")?;
        Ok(file["id"].as_str().unwrap_or_default().to_owned())
    }

    async fn answer(&self, question: &Question, body: &Value) -> anyhow::Result<()> {
        let request = self.http.post(format!("{}{}", self.url, question.path())).json(body);
        accepted(self.send(request).await?).await?;
        Ok(())
    }

    async fn cancel(&self, run: &str) -> anyhow::Result<()> {
        let request = self.http.post(format!("{}/api/v1/runs/{run}/cancel", self.url));
        self.send(request).await?;
        Ok(())
    }
}

/// Converts an error response to an error with the server's explanation.
async fn accepted(answer: reqwest::Response) -> anyhow::Result<reqwest::Response> {
    let status = answer.status();
    if status.is_success() {
        return Ok(answer);
    }
    let body: Value = answer.json().await.unwrap_or_default();
    let word = |key: &str| printable(body[key].as_str().unwrap_or_default());
    let hint = if status == reqwest::StatusCode::UNAUTHORIZED { "; set CAPSTAN_KEY or --key" } else { "" };
    bail!("the server answered {}: {} {}{hint}", status.as_u16(), word("code"), word("detail"))
}

struct Follower {
    client: Client,
    screen: Screen,
    run: Option<String>,
    conversation: Option<String>,
    cursor: Option<String>,
    at_line_start: bool,
    /// The open questions, oldest first.
    questions: VecDeque<Question>,
    typing: Option<Typing>,
}

impl Follower {
    async fn follow(&mut self, mut answer: reqwest::Response) -> anyhow::Result<RunOutcome> {
        let mut interrupted = false;
        loop {
            if let Some(ending) = self.read(answer, &mut interrupted).await? {
                return Ok(ending);
            }
            answer = self.reconnect().await?;
        }
    }

    /// Reads one stream until the run ends. Returns `None` if the stream breaks before.
    async fn read(&mut self, answer: reqwest::Response, interrupted: &mut bool) -> anyhow::Result<Option<RunOutcome>> {
        let mut stream = SseByteStream::new(answer.bytes_stream().boxed());
        loop {
            let next = tokio::select! {
                next = tokio::time::timeout(IDLE_TIMEOUT, stream.next()) => next,
                line = typed(&mut self.typing, !self.questions.is_empty()) => {
                    self.reply(&line).await?;
                    continue;
                }
                signal = tokio::signal::ctrl_c() => {
                    signal.context("signals cannot be received")?;
                    match (&self.run, *interrupted) {
                        (Some(run), false) => self.client.cancel(run).await?,
                        (Some(_), true) | (None, _) => bail!("interrupted"),
                    }
                    *interrupted = true;
                    continue;
                }
            };
            let Ok(Some(Ok(message))) = next else { return Ok(None) };
            let Some(event) = message.data.and_then(|data| serde_json::from_str::<Value>(&data).ok()) else { continue };
            // Without the complete event, the client reconnects and reads it again.
            let Ok(event) = self.client.whole(event).await else { return Ok(None) };
            if let Some(id) = message.id.filter(|id| !id.is_empty()) {
                self.cursor = Some(id);
            }
            for (slot, key) in [(&mut self.run, "run_id"), (&mut self.conversation, "conversation_id")] {
                if slot.is_none() {
                    *slot = event[key].as_str().map(str::to_owned);
                }
            }
            match self.screen.show(&event) {
                ScreenUpdate::Answer(text) => self.answer(&text)?,
                ScreenUpdate::Remark(text) => self.remark(&text)?,
                ScreenUpdate::Question(question) => self.ask(question)?,
                ScreenUpdate::QuestionClosed(id) => self.resolved(&id)?,
                ScreenUpdate::Nothing => {}
                ScreenUpdate::End(ending, text) => {
                    if !self.at_line_start {
                        self.answer("\n")?;
                    }
                    if let Some(text) = text {
                        self.remark(&text)?;
                    }
                    return Ok(Some(ending));
                }
            }
        }
    }

    /// Shows a question, unless another one is open.
    fn ask(&mut self, question: Question) -> anyhow::Result<()> {
        if self.typing.is_none() {
            return self.remark(&question.remark());
        }
        self.questions.push_back(question);
        if self.questions.len() == 1 { self.prompt() } else { Ok(()) }
    }

    fn prompt(&mut self) -> anyhow::Result<()> {
        match self.questions.front().map(Question::prompt) {
            Some(words) => self.remark(&words),
            None => Ok(()),
        }
    }

    /// Removes a question that was answered here or elsewhere, or has expired.
    fn resolved(&mut self, id: &str) -> anyhow::Result<()> {
        let was_shown = self.questions.front().is_some_and(|question| question.id == id);
        self.questions.retain(|question| question.id != id);
        if was_shown { self.prompt() } else { Ok(()) }
    }

    /// Sends a line as the answer to the displayed question. An event of the stream confirms it.
    async fn reply(&mut self, line: &str) -> anyhow::Result<()> {
        let Some(question) = self.questions.front() else { return Ok(()) };
        let words = match question.answer(line) {
            Ok(body) => self.client.answer(question, &body).await.err().map(|error| format!("-- {error:#}")),
            Err(words) => Some(words),
        };
        match words {
            Some(words) => self.remark(&words),
            None => Ok(()),
        }
    }

    async fn reconnect(&mut self) -> anyhow::Result<reqwest::Response> {
        let Some(run) = self.run.clone() else { bail!("the stream broke before the run was known; send the question again") };
        self.remark("-- connection lost; reconnecting")?;
        let tries = async {
            loop {
                tokio::time::sleep(RECONNECT_PAUSE).await;
                match self.client.come_back(&run, self.cursor.as_deref()).await {
                    // The run has ended, and the client has received its last event.
                    Ok(answer) if answer.status() == reqwest::StatusCode::NO_CONTENT => {
                        bail!("the run has ended; there are no more events")
                    }
                    Ok(answer) if answer.status().is_server_error() => {}
                    Ok(answer) => return accepted(answer).await,
                    Err(_) => {}
                }
            }
        };
        match tokio::time::timeout(RECONNECT_TIMEOUT, tries).await {
            Ok(answer) => answer,
            Err(_) => bail!("no server answers at {}; the run {run} continues there", self.client.url),
        }
    }

    fn answer(&mut self, text: &str) -> anyhow::Result<()> {
        let text = printable(text);
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output cannot be written")?;
        if !text.is_empty() {
            self.at_line_start = text.ends_with('\n');
        }
        Ok(())
    }

    fn remark(&mut self, text: &str) -> anyhow::Result<()> {
        if !self.at_line_start {
            self.answer("\n")?;
        }
        remark(text);
        Ok(())
    }
}

/// Returns the next typed line, while an answer is needed.
async fn typed(typing: &mut Option<Typing>, is_wanted: bool) -> String {
    match typing {
        Some(typing) if is_wanted => typing.line().await,
        Some(_) | None => std::future::pending().await,
    }
}

/// Writes a remark to standard error. A failure does not affect the answer on standard output.
fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}
