//! One case of the matrix: its scenario, the disturbance at its point, and the checks at the end.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::checks::{self, Death};
use super::kill_points::{Often, Point, Scenario};
use super::rotation;
use super::turn::{ID, Turn};
use support::asker::{Asker, Question};
use support::chance::Chance;
use support::client::{Client, Followed, Known, insist};
use support::database::Kind;
use support::link::Link;
use support::model::ModelMock;
use support::server::{Server, Site};
use support::sse::{Frame, stored};
use support::{audit, wait};

/// The disturbance at the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The process is killed and another one started.
    Kill,
    /// The process is stopped until its lease expires. On Postgres another process takes over meanwhile.
    Stop,
    /// The task panics.
    Panic,
    /// The database is away for a while: on Postgres connections break and cannot be opened, and the SQLite file stays locked.
    Cut,
}

impl Way {
    pub const ALL: [Self; 4] = [Self::Kill, Self::Stop, Self::Panic, Self::Cut];
}

pub struct Case {
    pub point: &'static Point,
    pub way: Way,
    pub kind: Kind,
    /// The seed of the script. Seed 0 always yields the same script.
    pub seed: u64,
    turn: Turn,
    /// The pass of the point at which the disturbance happens, counted from 1.
    pub at: usize,
    /// The length of the database outage.
    pub outage: Duration,
    /// When a stopped process resumes, if another process takes over meanwhile.
    waking: Waking,
    /// Whether a reader that is one event behind counts as lagging.
    lags_soon: bool,
    /// A bug that is planted in the servers.
    bug: Option<&'static str>,
}

/// See [`Case::waking`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waking {
    /// As soon as the other process has begun.
    AtTakeover,
    /// After the other process has ended the run.
    AtEnd,
}

impl Case {
    /// Returns the case. `chance` draws the values that the seed leaves open, and `at` if it is `None`.
    pub fn new(point: &'static Point, way: Way, kind: Kind, seed: u64, at: Option<usize>, mut chance: Chance) -> Self {
        let turn = Turn::new(ID, point.scenario, seed, &mut chance);
        let at = at.unwrap_or_else(|| match point.often {
            Often::At(at) => at,
            _ if seed == 0 => 1,
            often => usize::try_from(chance.between(1, turn.times(often) as u64)).unwrap(),
        });
        // Shorter than the lease, about as long, or longer than the statement timeout.
        let outage = if seed == 0 { 1_500 } else { chance.pick(&[50, 400, 1_500, 2_500, 6_000]) };
        let waking = if seed == 0 { Waking::AtTakeover } else { chance.pick(&[Waking::AtTakeover, Waking::AtEnd]) };
        let lags_soon = if seed == 0 { matches!(point.name, "C07" | "C23") } else { chance.pick(&[false, true]) };
        Self { point, way, kind, seed, turn, at, outage: Duration::from_millis(outage), waking, lags_soon, bug: None }
    }

    /// Returns the case with a bug planted in the servers, or without one.
    pub fn with_bug(self, bug: Option<&'static str>, waking: Waking) -> Self {
        Self { bug, waking, ..self }
    }

    /// Returns the name in reports.
    pub fn name(&self) -> String {
        format!("{}@{} {:?} {:?} seed {};", self.point.name, self.at, self.way, self.kind, self.seed)
    }

    /// Plays the case and panics if a check fails. Returns whether the point was reached.
    pub async fn play(self) -> bool {
        match self.point.scenario {
            Scenario::Rotation => rotation::play(self).await,
            _ => Stage::new(self).await.play().await,
        }
    }
}

/// The context window has room for [`checks::much`] alone. After its eviction every other message fits, so each eviction
/// happens once.
const EARLIER_IS_TOO_LONG: [(&str, &str); 3] = [
    ("CAPSTAN_AGENT__CONTEXT__LIMIT", "20000"),
    ("CAPSTAN_AGENT__CONTEXT__EVICT_BELOW", "8000"),
    ("CAPSTAN_AGENT__CONTEXT__KEEP_LAST", "1"),
];

/// A case under way.
struct Stage {
    /// The running servers, newest last. They are dropped first, because their logs are in the site's folder.
    servers: Vec<Server>,
    case: Case,
    model: Arc<ModelMock>,
    site: Arc<Site>,
    link: Option<Link>,
    asker: Asker,
    address: watch::Sender<String>,
    following: Following,
}

/// A client that reads in the background.
#[derive(Default)]
struct Following {
    task: JoinSet<Followed>,
    followed: Option<Followed>,
}

impl Following {
    /// Waits until the client has every event.
    async fn done(&mut self) {
        if self.followed.is_none() {
            match self.task.join_next().await.unwrap() {
                Ok(followed) => self.followed = Some(followed),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }
}

impl Stage {
    async fn new(case: Case) -> Self {
        let model = Arc::new(ModelMock::start().await);
        let mut site =
            Site::scripted(case.kind, &model).await.short_leases().env("CAPSTAN_AGENT__LLM_RETRY__DELAYS_MS", "[400, 400]");
        if case.point.scenario == Scenario::Summary {
            for (name, value) in EARLIER_IS_TOO_LONG {
                site = site.env(name, value);
            }
        }
        if case.point.scenario == Scenario::Approval {
            let mut entry = site.ledger.mcp_server();
            entry["capstan"]["approval"] = json!({"append": "ask"});
            site = site.mcp(json!({"mcpServers": {"ledger": entry}}));
        }
        if case.lags_soon {
            site = site.env("CAPSTAN_LIMITS__STREAM_BUFFER_EVENTS", "1");
        }
        if let Some(bug) = case.bug {
            site = site.env("CAPSTAN_PLANTED", bug);
        }
        let mut link = None;
        if (case.way, case.kind) == (Way::Cut, Kind::Postgres) {
            let through = Link::to(site.database.server()).await;
            let url = site.database.url_through(through.address);
            site = site.env("DATABASE_URL", &url);
            link = Some(through);
        }
        let (asker, address) = (Asker::start(case.point.failpoint).await, watch::Sender::new(String::new()));
        let (site, servers, following) = (Arc::new(site), Vec::new(), Following::default());
        Self { case, model, site, link, asker, address, servers, following }
    }

    fn add(&mut self, settings: &[(&str, &str)]) {
        let server = self.site.spawn(settings);
        self.address.send_replace(server.url.clone());
        self.servers.push(server);
    }

    fn newest(&mut self) -> &mut Server {
        self.servers.last_mut().unwrap()
    }

    async fn play(mut self) -> bool {
        let scenario = self.case.point.scenario;
        let mut body = json!({"input": self.case.turn.input});
        if scenario == Scenario::Summary {
            body["conversation_id"] = self.say_much().await;
        }
        let client = Client::new(self.address.subscribe(), "the-one", body);
        let run = client.run();
        if scenario == Scenario::Takeover {
            self.add(&[]);
            self.following.task.spawn(client.follow());
            self.model.wait_for("two tokens", ID, |seen| seen.iter().any(|one| one.sent.len() == 2)).await;
            self.servers.pop().unwrap().kill9().await;
            self.model.release(ID);
            self.arm();
        } else {
            self.arm();
            self.following.task.spawn(client.follow());
        }
        let mut acting = JoinSet::new();
        acting.spawn(act(scenario, Arc::clone(&self.model), Arc::clone(&self.site), self.address.subscribe(), run.clone()));
        let question = self.reached().await;
        let is_reached = question.is_some();
        let death = match question {
            Some(question) => self.disturb(question).await,
            None => None,
        };
        self.end().await;
        acting.join_all().await;
        let sleeps = is_reached && (self.case.way, self.case.kind) == (Way::Stop, Kind::Postgres);
        if sleeps && self.case.waking == Waking::AtEnd {
            self.servers[0].signal("CONT").await;
        }
        let run = run.borrow().clone().unwrap();
        self.check(death.as_ref(), &run).await;
        is_reached
    }

    /// Makes a conversation so long that its next run evicts messages. Returns its id.
    async fn say_much(&self) -> Value {
        let mut server = self.site.start().await;
        let run = server.start_run(&json!({"input": checks::much()})).await;
        let ended = server.finished(run["id"].as_str().unwrap()).await;
        assert_eq!(ended["status"], "completed", "{ended}");
        server.kill9().await;
        ended["conversation_id"].clone()
    }

    /// Starts the server that will be disturbed.
    fn arm(&mut self) {
        let (name, value) = self.asker.setting(self.case.at);
        self.add(&[(name, value.as_str())]);
    }

    /// Waits until the point is reached. Returns `None` if the run ends first.
    async fn reached(&mut self) -> Option<Question> {
        let mut starts = 1;
        loop {
            tokio::select! {
                biased;
                question = self.asker.next() => return Some(question),
                () = self.following.done() => break,
                _ = self.servers.last_mut().unwrap().exit() => {
                    // Another process has taken the port.
                    assert!(starts < 3, "the server does not start");
                    starts += 1;
                    self.servers.pop();
                    self.arm();
                }
            }
        }
        // The last points come after the client has seen the end. Only a case that misses its point waits the full time.
        tokio::time::timeout(Duration::from_secs(10), self.asker.next()).await.ok()
    }

    /// Disturbs the server. Returns the state of the database at that time if the process did nothing more.
    async fn disturb(&mut self, question: Question) -> Option<Death> {
        if self.case.point.name == "C12" {
            wait::until("the tool to have acted", Duration::from_secs(10), || async {
                (self.site.ledger.entries().len() >= self.case.at).then_some(())
            })
            .await;
        }
        match (self.case.way, self.case.kind) {
            (Way::Kill, _) => {
                question.answer("kill").await;
                let status = self.newest().ended(Duration::from_secs(10)).await;
                assert_eq!(status.code(), None, "the process must die by a signal, not exit with {status}");
                self.servers.pop();
                // A tool acts on the request even if the sender is gone.
                self.site.ledger.no_server_left().await;
                let death = Death::of(&self.site, &self.model, true).await;
                self.add(&[]);
                Some(death)
            }
            (Way::Stop, kind) => {
                question.answer("stop").await;
                self.newest().stopped().await;
                // At other points, only the stopped process's transport knows whether a request is on its way.
                let nothing_sent = matches!(self.case.point.name, "C09" | "C10") && self.case.at == 1;
                let death = Death::of(&self.site, &self.model, nothing_sent).await;
                if kind == Kind::Postgres {
                    self.add(&[]);
                    if self.case.waking == Waking::AtTakeover {
                        self.taken_over(&death).await;
                        self.servers[0].signal("CONT").await;
                    }
                    return Some(death);
                }
                wait::until("the end of the lease", Duration::from_secs(20), || async {
                    (self.site.database.live_leases().await == 0).then_some(())
                })
                .await;
                self.newest().signal("CONT").await;
                None
            }
            (Way::Panic, _) => {
                question.answer("panic").await;
                None
            }
            (Way::Cut, _) => {
                cut(self.link.as_ref(), &self.site, self.case.outage, question).await;
                None
            }
        }
    }

    /// Waits until another process has claimed the run, or has nothing left to claim.
    async fn taken_over(&mut self, death: &Death) {
        let Self { site, following, .. } = self;
        let claimed = wait::until("the takeover", Duration::from_secs(40), || async {
            (Death::epochs(site).await > death.epochs).then_some(())
        });
        tokio::select! {
            () = claimed => {}
            () = following.done() => {}
        }
    }

    /// Waits until the client has every event. A server that exits by itself is replaced. This happens after a panic of a task,
    /// and when the database is away while a start looks for the predecessor's leases.
    async fn end(&mut self) {
        loop {
            let status = tokio::select! {
                () = self.following.done() => return,
                status = self.servers.last_mut().unwrap().exit() => status,
            };
            let may_end = self.case.way == Way::Panic || self.case.point.scenario == Scenario::Takeover;
            assert!(may_end, "the server exited by itself: {status}");
            self.servers.pop();
            self.add(&[]);
        }
    }

    async fn check(mut self, death: Option<&Death>, (run, conversation): &(String, String)) {
        // Each running server is healthy, also a stopped one that resumed too late.
        let mut afters = 0;
        for (place, server) in self.servers.iter().enumerate() {
            afters += self.works(server, place).await;
        }
        let scenario = self.case.point.scenario;
        let server = self.servers.last().unwrap();
        let runs = self.site.database.count("SELECT CAST(count(*) AS text) FROM runs").await;
        if scenario == Scenario::Delete {
            assert_eq!(server.get(&format!("/runs/{run}")).send().await.unwrap().status(), StatusCode::NOT_FOUND);
            assert_eq!(usize::try_from(runs).unwrap(), afters);
            checks::deleted(&self.site, conversation).await;
        } else {
            let before = usize::from(scenario == Scenario::Summary);
            assert_eq!(usize::try_from(runs).unwrap(), before + 1 + afters, "one run by the key, and those before and after");
            let followed = self.following.followed.take().unwrap();
            let log = self.log(&followed, run).await;
            let ended = server.finished(run).await;
            match scenario {
                Scenario::Cancel | Scenario::CancelTool => {
                    assert_eq!(ended["status"], "cancelled", "{ended}");
                    checks::cancelled(&self.site, &self.model, death).await;
                }
                Scenario::Turn
                | Scenario::SlowTools
                | Scenario::Takeover
                | Scenario::Retry
                | Scenario::CutCall
                | Scenario::Approval
                | Scenario::Summary
                | Scenario::Delete
                | Scenario::Rotation => {
                    assert_eq!(ended["status"], "completed", "{ended}");
                    if (self.case.point.name, self.case.way) == ("C30", Way::Panic) {
                        checks::no_tools(&self.site, &self.case.turn).await;
                    } else {
                        checks::tools(&self.site, &self.case.turn, death, &log).await;
                    }
                    checks::text(&self.model, death, &log);
                }
            }
            if matches!(scenario, Scenario::Retry | Scenario::CutCall) {
                checks::retry(&self.model, death, &log);
            }
            if scenario == Scenario::Summary {
                checks::summary(&self.site, &self.model, conversation, &log).await;
            }
            if scenario == Scenario::Takeover && death.is_some() {
                assert_eq!(ended["attempt"], 2, "the epoch advanced once: {ended}");
            }
        }
        self.model.assert_history_was_sendable();
        for mut server in self.servers.drain(..) {
            server.kill9().await;
        }
        self.site.ledger.no_server_left().await;
        audit::assert_sound(&self.site.database).await;
    }

    /// Starts runs on the server until one of them used a tool and kept its lease to the end. By then, earlier writes of the server
    /// are committed or lost. Returns the number of runs.
    async fn works(&self, server: &Server, place: usize) -> usize {
        let script = json!({"text": checks::AFTER});
        let body = json!({"input": format!("[[id:after]][[call:ledger__lookup {script}]][[next]][[text:1,0]]")});
        let mut count = 0;
        let before = self.site.ledger.count("lookup", checks::AFTER);
        // MCP servers that could not be started wait for their backoff.
        let deadline = Instant::now() + Duration::from_secs(40);
        let mut is_own = false;
        while self.site.ledger.count("lookup", checks::AFTER) == before || !is_own {
            assert!(Instant::now() < deadline, "the tools do not work again");
            let key = format!("after-{place}-{count}");
            let run = wait::until("the server to answer", Duration::from_secs(30), || async {
                let answer = server.post("/runs", &body).header("idempotency-key", &key).send().await.ok()?;
                answer.json::<Value>().await.ok()?["run"]["id"].as_str().map(str::to_owned)
            })
            .await;
            assert_eq!(server.finished(&run).await["status"], "completed");
            is_own = server.log_text().lines().any(|line| line.contains(&run) && line.contains("run ended"));
            count += 1;
        }
        count
    }

    /// Returns the log of the run, which must equal the client's events, over either transport.
    async fn log(&self, followed: &Followed, run: &str) -> Vec<Frame> {
        assert!(!followed.is_gone, "the run is missing");
        let server = self.servers.last().unwrap();
        let log = stored(&server.run_events(run).await.all().await);
        assert_eq!(followed.frames, log, "what the client has got, and the log");
        let as_json: Vec<Value> = log.iter().map(Frame::json).collect();
        assert_eq!(as_json, server.run_events_json(run).await, "the log as a stream gives it, and as pages do");
        log
    }
}

/// Takes the database away for a while, starting before the process continues.
pub async fn cut(link: Option<&Link>, site: &Site, outage: Duration, question: Question) {
    if let Some(link) = link {
        link.cut();
        question.answer("go on").await;
        tokio::time::sleep(outage).await;
        return link.mend();
    }
    let holding = site.database.hold_writer();
    tokio::pin!(holding);
    // A process in the middle of a write must continue before another connection gets the file lock.
    let held = tokio::time::timeout(Duration::from_millis(200), &mut holding).await;
    question.answer("go on").await;
    let _held = match held {
        Ok(held) => held,
        Err(_) => holding.await,
    };
    tokio::time::sleep(outage).await;
}

/// Plays the scenario's request from outside when its time has come.
async fn act(scenario: Scenario, model: Arc<ModelMock>, site: Arc<Site>, address: watch::Receiver<String>, mut run: Known) {
    match scenario {
        Scenario::Turn
        | Scenario::SlowTools
        | Scenario::Retry
        | Scenario::CutCall
        | Scenario::Takeover
        | Scenario::Summary
        | Scenario::Rotation => return,
        Scenario::Approval => {}
        Scenario::Cancel | Scenario::Delete => {
            model.wait_for("two tokens", ID, |seen| seen.iter().any(|one| one.sent.len() == 2)).await;
        }
        Scenario::CancelTool => {
            wait::until("the tool to act", Duration::from_secs(30), || async { (!site.ledger.entries().is_empty()).then_some(()) })
                .await;
        }
    }
    let (run, conversation) = run.wait_for(Option::is_some).await.unwrap().clone().unwrap();
    if scenario == Scenario::Approval {
        allow(address, &run).await;
    } else if scenario == Scenario::Delete {
        insist(address, |http, url| http.delete(format!("{url}/api/v1/conversations/{conversation}"))).await;
    } else {
        insist(address, |http, url| http.post(format!("{url}/api/v1/runs/{run}/cancel")).json(&json!({}))).await;
    }
}

/// Allows the call that the run waits for, after the run has released its lease. A repeated decision gets the stored answer,
/// even if no worker was notified of the first one.
async fn allow(address: watch::Receiver<String>, run: &str) {
    let asked = wait::until("the approval", Duration::from_secs(60), || async {
        let state = insist(address.clone(), |http, url| http.get(format!("{url}/api/v1/runs/{run}"))).await;
        if state.json::<Value>().await.ok()?["status"] != "waiting" {
            return None;
        }
        let answer = insist(address.clone(), |http, url| http.get(format!("{url}/api/v1/approvals?status=pending"))).await;
        answer.json::<Value>().await.ok()?["data"].get(0).cloned()
    })
    .await;
    let path = format!("approvals/{}", asked["id"].as_str().unwrap());
    let body = json!({"decision": "allow", "arguments_hash": asked["arguments_hash"]});
    let decide = |http: &reqwest::Client, url: &str| {
        http.post(format!("{url}/api/v1/{path}")).header("idempotency-key", "allowed").json(&body)
    };
    insist(address, decide).await;
}
