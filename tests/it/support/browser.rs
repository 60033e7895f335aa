//! A real browser: Chromium without its windows (the headless shell), driven over the WebDriver protocol.

use std::process::Stdio;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::runtime::{Handle, RuntimeFlavor};

use super::wait;

/// The key that sends a message.
pub const ENTER: &str = "\u{e007}";
/// The key that stops an answer.
pub const ESCAPE: &str = "\u{e00c}";
/// The key that moves the focus to the next element.
pub const TAB: &str = "\u{e004}";
/// The key that chooses the option before.
pub const LEFT: &str = "\u{e012}";
/// The key that chooses the option after, from left to right.
pub const RIGHT: &str = "\u{e014}";
/// The key that chooses the option below.
pub const DOWN: &str = "\u{e015}";
/// A key that changes what other keys do while it is held.
pub const SHIFT: &str = "\u{e008}";
/// The key of commands, held like [`SHIFT`].
pub const CONTROL: &str = "\u{e009}";

/// Chromium without the code for windows: it starts with a third of the processor time.
const SHELL: &str = "/usr/bin/chromium-headless-shell";

/// How long anything on a page may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause between two looks at a page. A look takes milliseconds of the processor time of three processes.
const LOOKS: Duration = Duration::from_millis(50);
/// How long the piece of work of [`Browser::slowness`] takes on a machine on which limits of time hold as they are written.
const WORK_MS: f64 = 70.0;
/// How long Chromium may take to exit. In any case it exits when the pipe to its driver closes.
const LEAVING: Duration = Duration::from_secs(10);

/// Starts chromedriver. Returns its process, its output and its port; `None` if it ends at once, because another process has taken the
/// port that it had found free.
async fn start_driver() -> Option<(Child, Lines<BufReader<ChildStdout>>, String)> {
    let mut command = Command::new("chromedriver");
    command.arg("--port=0").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut driver = command.spawn().expect("chromedriver is there: scripts/test.sh installs it");
    let mut said = BufReader::new(driver.stdout.take().unwrap()).lines();
    while let Some(line) = said.next_line().await.unwrap() {
        if let Some((_, port)) = line.split_once("started successfully on port ") {
            let port = port.trim_end_matches('.').to_owned();
            return Some((driver, said, port));
        }
    }
    None
}

/// One window. Gone when dropped, with all processes and the profile, in tests whose runtime has several threads. Such a test fails
/// there if the security policy of a page has refused something.
pub struct Browser {
    http: Client,
    session: String,
    _driver: Child,
    /// Keeps the driver's output readable: a write to a closed pipe would end the driver.
    _said: Lines<BufReader<ChildStdout>>,
    _profile: TempDir,
}

impl Browser {
    /// Starts one with a profile of its own.
    pub async fn start() -> Self {
        let started = async {
            loop {
                if let Some(started) = start_driver().await {
                    return started;
                }
            }
        };
        let (driver, said, port) = wait::within("chromedriver to listen", PATIENCE, started).await;
        let profile = tempfile::tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--window-size=1280,900",
            &folder,
        ];
        let logs = json!({"browser": "ALL"});
        let options = json!({"binary": SHELL, "args": arguments});
        let wanted = json!({"browserName": "chrome-headless-shell", "goog:chromeOptions": options, "goog:loggingPrefs": logs});
        let http = Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        let root = format!("http://127.0.0.1:{port}/session");
        let body = json!({"capabilities": {"alwaysMatch": wanted}});
        let starting = async { http.post(&root).json(&body).send().await.unwrap().json::<Value>().await.unwrap() };
        let answer = wait::within("Chromium to start", PATIENCE, starting).await;
        let id = answer["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("no browser: {answer}"));
        let session = format!("{root}/{id}");
        Self { http, session, _driver: driver, _said: said, _profile: profile }
    }

    async fn ask(&self, method: Method, path: &str, body: &Value) -> Result<Value, Value> {
        let request = self.http.request(method, format!("{}{path}", self.session)).json(body);
        let answer = request.send().await.unwrap();
        let is_done = answer.status().is_success();
        let value = answer.json::<Value>().await.unwrap()["value"].take();
        if is_done { Ok(value) } else { Err(value) }
    }

    /// Goes to an address, and waits until the page has loaded.
    pub async fn open(&self, url: &str) {
        let body = json!({"url": url});
        wait::within("the page to load", PATIENCE, self.ask(Method::POST, "/url", &body)).await.unwrap();
    }

    /// Runs a script in each page from now on, before the scripts of the page itself.
    pub async fn run_first(&self, script: &str) {
        self.command("Page.addScriptToEvaluateOnNewDocument", &json!({"source": script})).await;
    }

    /// Loads the page anew.
    pub async fn reload(&self) {
        let body = json!({});
        wait::within("the page to load anew", PATIENCE, self.ask(Method::POST, "/refresh", &body)).await.unwrap();
    }

    /// Shows the page in the dark or the light form, at this width.
    pub async fn look(&self, scheme: &str, width: u32) {
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 800});
        for (command, parameters) in [("Emulation.setEmulatedMedia", media), ("Emulation.setDeviceMetricsOverride", size)] {
            self.command(command, &parameters).await;
        }
    }

    /// Takes a picture of the window: a PNG in base64.
    pub async fn picture(&self) -> String {
        let answer = self.command("Page.captureScreenshot", &json!({"format": "png"})).await;
        answer["data"].as_str().unwrap().to_owned()
    }

    /// Makes the browser one of a phone with a touch screen, 390 pixels wide.
    pub async fn become_phone(&self) {
        self.look("light", 390).await;
        self.command("Emulation.setTouchEmulationEnabled", &json!({"enabled": true, "maxTouchPoints": 1})).await;
    }

    /// Touches the middle of the first element that the selector finds, as soon as there is one.
    pub async fn tap(&self, css: &str) {
        let by = json!({"using": "css selector", "value": css});
        wait::until_every(LOOKS, &format!("a touch of {css}"), PATIENCE, || async {
            let found = self.ask(Method::POST, "/element", &by).await.ok()?;
            let to = json!({"type": "pointerMove", "origin": found, "x": 0, "y": 0});
            self.touch(&[to], &[]).await.ok()
        })
        .await;
    }

    /// Moves a finger down over the middle of the window by this many pixels, so that what lies there scrolls up.
    pub async fn swipe_down(&self, pixels: u32) {
        let to = |y: u32| json!({"type": "pointerMove", "duration": 50, "x": 195, "y": y});
        self.touch(&[to(300)], &[to(300 + pixels / 2), to(300 + pixels)]).await.unwrap();
    }

    /// Moves a finger, touches, moves it further, and lifts it.
    async fn touch(&self, before: &[Value], after: &[Value]) -> Result<Value, Value> {
        let (down, up) = (json!({"type": "pointerDown", "button": 0}), json!({"type": "pointerUp", "button": 0}));
        let actions = [before, &[down], after, &[up]].concat();
        let finger = json!({"type": "pointer", "id": "finger", "parameters": {"pointerType": "touch"}, "actions": actions});
        self.ask(Method::POST, "/actions", &json!({"actions": [finger]})).await
    }

    /// Opens another tab of the same profile, goes on in it, and returns its name.
    pub async fn open_tab(&self) -> String {
        let made = self.ask(Method::POST, "/window/new", &json!({"type": "tab"})).await.unwrap();
        let name = made["handle"].as_str().unwrap().to_owned();
        self.turn_to(&name).await;
        name
    }

    /// Returns the name of the tab that is driven now.
    pub async fn tab(&self) -> String {
        self.ask(Method::GET, "/window", &json!({})).await.unwrap().as_str().unwrap().to_owned()
    }

    /// Goes on in another tab.
    pub async fn turn_to(&self, tab: &str) {
        self.ask(Method::POST, "/window", &json!({"handle": tab})).await.unwrap();
    }

    /// Returns what the security policies of pages have refused since the last call, in the words of the browser.
    pub async fn refused(&self) -> Vec<String> {
        self.read_refused().await.unwrap_or_default()
    }

    async fn read_refused(&self) -> Option<Vec<String>> {
        let request = self.http.post(format!("{}/se/log", self.session)).json(&json!({"type": "browser"}));
        let answer: Value = request.timeout(LEAVING).send().await.ok()?.json().await.ok()?;
        let words = answer["value"].as_array()?.iter().filter_map(|entry| entry["message"].as_str());
        Some(words.filter(|words| words.contains("Content Security Policy")).map(str::to_owned).collect())
    }

    /// Sends a command of the DevTools protocol.
    pub async fn command(&self, command: &str, parameters: &Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.ask(Method::POST, "/goog/cdp/execute", &body).await.unwrap()
    }

    /// Returns the processor time that the process of the page has used, and the time now, in seconds.
    pub async fn processor_time(&self) -> (f64, f64) {
        self.command("Performance.enable", &json!({"timeDomain": "threadTicks"})).await;
        let answer = self.command("Performance.getMetrics", &json!({})).await;
        let metrics = answer["metrics"].as_array().unwrap();
        let of = |name: &str| metrics.iter().find(|metric| metric["name"] == name).and_then(|metric| metric["value"].as_f64());
        let time = |name: &str| of(name).unwrap_or_else(|| panic!("no {name} in {answer}"));
        (time("ProcessTime"), time("Timestamp"))
    }

    /// Returns how many times longer this machine takes for a fixed piece of work than one on which limits of time hold as they are
    /// written; 1 on a faster machine. The best of several attempts counts, because other processes may delay a single one.
    pub async fn slowness(&self) -> f64 {
        let work = "const begun = performance.now();
            let text = '';
            for (let at = 0; at < 60000; at += 1) text = JSON.stringify(JSON.parse(JSON.stringify({ at, text: text.slice(0, 40) })));
            return performance.now() - begun";
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            best = best.min(self.run(work, &[]).await.as_f64().unwrap());
        }
        super::print_figure(&format!("the piece of work takes {best:.0} ms"));
        (best / WORK_MS).max(1.0)
    }

    async fn execute(&self, script: &str, arguments: &[&str]) -> Result<Value, Value> {
        self.ask(Method::POST, "/execute/sync", &json!({"script": script, "args": arguments})).await
    }

    /// Runs a script on the page and returns its value.
    pub async fn run(&self, script: &str, arguments: &[&str]) -> Value {
        let running = self.execute(script, arguments);
        wait::within(script, PATIENCE, running).await.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Shows a place of the page, such as `#/setup/tools`, without loading the page.
    pub async fn show(&self, place: &str) {
        self.run("location.hash = arguments[0]", &[place]).await;
    }

    /// Waits until a script returns something else than nothing, and gives that.
    pub async fn until(&self, what: &str, script: &str) -> Value {
        wait::until_every(LOOKS, what, PATIENCE, || async {
            // A page that is being left runs nothing.
            let value = self.execute(script, &[]).await.ok()?;
            (!matches!(value, Value::Null | Value::Bool(false))).then_some(value)
        })
        .await
    }

    /// Waits until the page shows these words in the first element that the selector finds.
    pub async fn shows(&self, css: &str, words: &str) -> String {
        let script = "const found = document.querySelector(arguments[0])?.innerText ?? ''; return found.includes(arguments[1]) ? found : null";
        wait::until_every(LOOKS, &format!("{words:?} in {css}"), PATIENCE, || async {
            self.execute(script, &[css, words]).await.ok()?.as_str().map(str::to_owned)
        })
        .await
    }

    /// How many elements there are.
    pub async fn count(&self, css: &str) -> u64 {
        self.run("return document.querySelectorAll(arguments[0]).length", &[css]).await.as_u64().unwrap()
    }

    /// Does these things, one by one, to the first element that the selector finds, as soon as that can be done.
    async fn act(&self, css: &str, acts: &[(&str, Value)]) {
        let by = json!({"using": "css selector", "value": css});
        wait::until_every(LOOKS, &format!("{acts:?} at {css}"), PATIENCE, || async {
            let found = self.ask(Method::POST, "/element", &by).await.ok()?;
            let id = found.as_object()?.values().next()?.as_str()?.to_owned();
            for (what, body) in acts {
                self.ask(Method::POST, &format!("/element/{id}/{what}"), body).await.ok()?;
            }
            Some(())
        })
        .await;
    }

    /// Clicks as a person does: not on what is hidden, or lies behind something else.
    pub async fn click(&self, css: &str) {
        self.act(css, &[("click", json!({}))]).await;
    }

    /// Presses keys, one after the other, in the element that has the focus.
    pub async fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key.to_string()})));
        self.perform(&strokes.collect::<Vec<Value>>()).await;
    }

    /// Presses a key while others are held, such as [`SHIFT`].
    pub async fn chord(&self, held: &[&str], key: &str) {
        let keys = || held.iter().copied().chain([key]);
        let downs = keys().map(|key| json!({"type": "keyDown", "value": key}));
        let ups = keys().rev().map(|key| json!({"type": "keyUp", "value": key}));
        self.perform(&downs.chain(ups).collect::<Vec<Value>>()).await;
    }

    async fn perform(&self, actions: &[Value]) {
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        wait::within("the keys to be pressed", PATIENCE, self.ask(Method::POST, "/actions", &body)).await.unwrap();
    }

    /// Replaces the text of an element, so that a second attempt does not type twice.
    pub async fn write(&self, css: &str, text: &str) {
        self.act(css, &[("clear", json!({})), ("value", json!({"text": text}))]).await;
    }
}

impl Drop for Browser {
    /// Ends Chromium first: its driver, killed, would leave it to write into a profile that is being removed.
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if runtime.runtime_flavor() != RuntimeFlavor::MultiThread {
            return;
        }
        let leaving = async {
            let refused = self.read_refused().await.unwrap_or_default();
            let _ = self.http.delete(&self.session).timeout(LEAVING).send().await;
            refused
        };
        // Other tasks continue meanwhile.
        let refused = tokio::task::block_in_place(|| runtime.block_on(leaving));
        if !std::thread::panicking() {
            assert!(refused.is_empty(), "{}", refused.join("\n"));
        }
    }
}
