//! The connection: asks, reads the stream, and comes back with its cursor when the stream is cut.

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
use super::asking::Asked;
use super::safe_text::printable;
use super::screen::{Ending, Screen, Shown};
use super::typing::Typing;
use crate::app::config::{Environment, Loaded};
use crate::app::healthcheck::reachable;
use crate::support::http::client_for;

/// How long the client keeps trying to come back to a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The wait before each further try.
const PAUSE: Duration = Duration::from_secs(1);

/// A stream that is silent for longer than three pings of the server is dead.
const SILENCE: Duration = Duration::from_secs(50);

struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
}

/// Asks the question and shows the answer. Interrupting it once cancels the run, twice leaves it running.
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
    if let Some(conversation) = &args.conversation {
        body["conversation_id"] = json!(conversation);
    }
    if let Some(model) = model {
        body["model"] = json!(model);
    }
    if let Some(agent) = &args.agent {
        body["agent"] = json!(agent);
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
        asked: VecDeque::new(),
        typing: std::io::stdin().is_terminal().then(Typing::default),
    };
    let first = follower.client.ask(&body).await?;
    let ending = follower.follow(first).await?;
    if let Some(conversation) = &follower.conversation
        && std::io::stderr().is_terminal()
    {
        remark(&format!("-- go on with: capstan chat --conversation {conversation} \"...\""));
    }
    Ok(match ending {
        Ending::Completed => ExitCode::SUCCESS,
        Ending::Failed => ExitCode::FAILURE,
        Ending::Cancelled => ExitCode::from(130),
    })
}

impl Client {
    fn with_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn ask(&self, body: &Value) -> anyhow::Result<reqwest::Response> {
        let request = self.http.post(format!("{}/api/v1/runs", self.url)).header("accept", "text/event-stream").json(body);
        let answer = self.with_key(request).send().await.map_err(|error| {
            if error.is_connect() {
                anyhow::anyhow!("no server answers at {}; start one with `capstan serve`, or name another with --url", self.url)
            } else {
                anyhow::Error::new(error.without_url()).context("the question could not be sent")
            }
        })?;
        accepted(answer).await
    }

    async fn come_back(&self, run: &str, cursor: Option<&str>) -> Result<reqwest::Response, reqwest::Error> {
        let mut request = self.http.get(format!("{}/api/v1/runs/{run}/events", self.url)).header("accept", "text/event-stream");
        if let Some(cursor) = cursor {
            request = request.header("last-event-id", cursor);
        }
        self.with_key(request).send().await
    }

    /// Returns the whole event where its frame was too small for it, and any other event as it is.
    async fn whole(&self, event: Value) -> anyhow::Result<Value> {
        let Some(path) = event["shortened"]["url"].as_str().filter(|path| path.starts_with("/api/v1/")) else { return Ok(event) };
        let request = self.http.get(format!("{}{path}", self.url)).header("accept", "application/json");
        let answer = accepted(self.with_key(request).send().await.map_err(reqwest::Error::without_url)?).await?;
        let mut page: Value = answer.json().await.map_err(reqwest::Error::without_url)?;
        Ok(page["data"][0].take())
    }

    /// Stores a file, and gives its id.
    async fn upload(&self, path: &Path) -> anyhow::Result<String> {
        let bytes = std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = utf8_percent_encode(&name, NON_ALPHANUMERIC);
        let request = self.http.post(format!("{}/api/v1/files?name={name}", self.url)).body(bytes);
        let request = request.header("content-type", "application/octet-stream");
        let sent = self.with_key(request).send().await.map_err(reqwest::Error::without_url);
        let answer = accepted(sent.context("the file could not be sent")?).await.with_context(|| path.display().to_string())?;
        let file: Value = answer.json().await.context("the server's answer is no JSON")?;
        Ok(file["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Answers a question of the run.
    async fn answer(&self, asked: &Asked, body: &Value) -> anyhow::Result<()> {
        let request = self.http.post(format!("{}{}", self.url, asked.path())).json(body);
        accepted(self.with_key(request).send().await.map_err(reqwest::Error::without_url)?).await?;
        Ok(())
    }

    async fn cancel(&self, run: &str) -> anyhow::Result<()> {
        let request = self.http.post(format!("{}/api/v1/runs/{run}/cancel", self.url));
        self.with_key(request).send().await.map_err(reqwest::Error::without_url)?;
        Ok(())
    }
}

/// The answer if it is a success, else an error with the server's own words.
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
    /// What the run wants to know, in the order of asking.
    asked: VecDeque<Asked>,
    /// The terminal, if there is one to answer at.
    typing: Option<Typing>,
}

impl Follower {
    async fn follow(&mut self, first: reqwest::Response) -> anyhow::Result<Ending> {
        let mut answer = first;
        let mut interrupted = false;
        loop {
            if let Some(ending) = self.read(answer, &mut interrupted).await? {
                return Ok(ending);
            }
            answer = self.reconnect().await?;
        }
    }

    /// Reads one stream until the run ends, or `None` if the stream is cut before.
    async fn read(&mut self, answer: reqwest::Response, interrupted: &mut bool) -> anyhow::Result<Option<Ending>> {
        let mut stream = SseByteStream::new(answer.bytes_stream().boxed());
        loop {
            let next = tokio::select! {
                next = tokio::time::timeout(SILENCE, stream.next()) => next,
                line = typed(&mut self.typing, !self.asked.is_empty()) => {
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
            // Without the whole event the client comes back to it.
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
                Shown::Answer(text) => self.answer(&text)?,
                Shown::Remark(text) => self.remark(&text)?,
                Shown::Asks(asked) => self.ask(asked)?,
                Shown::Settled(id) => self.settled(&id)?,
                Shown::Nothing => {}
                Shown::End(ending, text) => {
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

    /// Shows a question, unless another one is being answered.
    fn ask(&mut self, asked: Asked) -> anyhow::Result<()> {
        if self.typing.is_none() {
            return self.remark(&asked.remark());
        }
        self.asked.push_back(asked);
        if self.asked.len() == 1 { self.prompt() } else { Ok(()) }
    }

    fn prompt(&mut self) -> anyhow::Result<()> {
        match self.asked.front().map(Asked::prompt) {
            Some(words) => self.remark(&words),
            None => Ok(()),
        }
    }

    /// A question is not open any more: answered here, or elsewhere, or never.
    fn settled(&mut self, id: &str) -> anyhow::Result<()> {
        let was_shown = self.asked.front().is_some_and(|asked| asked.id == id);
        self.asked.retain(|asked| asked.id != id);
        if was_shown { self.prompt() } else { Ok(()) }
    }

    /// Sends what was typed as the answer to the question that is shown. The stream tells when it is settled.
    async fn reply(&mut self, line: &str) -> anyhow::Result<()> {
        let Some(asked) = self.asked.front() else { return Ok(()) };
        let words = match asked.answer(line) {
            Ok(body) => self.client.answer(asked, &body).await.err().map(|error| format!("-- {error:#}")),
            Err(words) => Some(words),
        };
        match words {
            Some(words) => self.remark(&words),
            None => Ok(()),
        }
    }

    async fn reconnect(&mut self) -> anyhow::Result<reqwest::Response> {
        let Some(run) = self.run.clone() else { bail!("the stream was cut before the run was known; ask again") };
        self.remark("-- the connection was cut; coming back")?;
        let tries = async {
            loop {
                tokio::time::sleep(PAUSE).await;
                match self.client.come_back(&run, self.cursor.as_deref()).await {
                    // A run that is over and whose last event was seen already has nothing more to say.
                    Ok(answer) if answer.status() == reqwest::StatusCode::NO_CONTENT => {
                        bail!("the run is over; nothing is left to read")
                    }
                    Ok(answer) if answer.status().is_server_error() => {}
                    Ok(answer) => return accepted(answer).await,
                    Err(_) => {}
                }
            }
        };
        match tokio::time::timeout(PATIENCE, tries).await {
            Ok(answer) => answer,
            Err(_) => bail!("no server answers at {}; the run {run} goes on without us", self.client.url),
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

/// The next line that is typed, while an answer is wanted.
async fn typed(typing: &mut Option<Typing>, is_wanted: bool) -> String {
    match typing {
        Some(typing) if is_wanted => typing.line().await,
        Some(_) | None => std::future::pending().await,
    }
}

/// Writes a remark to standard error. A remark that cannot be written does not keep the answer from standard output.
fn remark(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}
