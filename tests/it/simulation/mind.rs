//! A random model: answers, calls, malformed output, truncated answers, silence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use capstan::domain::conversation::message::{Part, Role};
use capstan::domain::ids::RunId;
use capstan::domain::model::{Adaptation, ModelError, ModelErrorKind, ModelEvent, ModelFinish, ModelRequest, Usage};
use capstan::domain::run::request_record::{SentTool, text_limits};
use capstan::domain::run::step_request::StepRequest;
use capstan::engine::check_sendable;
use capstan::provider::{ModelClient, ModelStream};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::dice::Dice;
use super::gate::Gate;
use super::witness::{Witness, digest_of};
use support::model_store::Bug;

/// The options that all nodes' models share.
pub struct MindOptions {
    /// Faulty answers for each thousand.
    pub trouble: u64,
    pub bug: Option<Bug>,
    /// The counter for answers and calls.
    pub numbers: AtomicU64,
}

/// The model of one node.
pub struct Mind {
    pub name: &'static str,
    pub options: Arc<MindOptions>,
    pub dice: Arc<Dice>,
    pub gate: Arc<Gate>,
    pub witness: Arc<Witness>,
}

/// One step of a stream.
enum Step {
    Says(ModelEvent),
    Fails(ModelErrorKind),
    /// The answer starts again.
    Restarts,
    /// Silence until the client's timeout.
    Hangs,
    /// The complete answer, with its text.
    Ends(ModelFinish, String),
}

/// Calls with a smaller number are repeated.
const FRESH: u64 = 10;

/// The tools, by their names in the ledger.
const TOOLS: [&str; 6] = ["look", "fetch", "note", "pay", "order", "launch"];

impl Mind {
    fn number(&self) -> u64 {
        self.options.numbers.fetch_add(1, Ordering::SeqCst)
    }

    fn listen(&self, request: &ModelRequest) {
        if let Err(error) = check_sendable(&request.messages) {
            self.witness.wrong(format!("a request cannot be sent: {error}: {:?}", request.messages));
        }
        let received = StepRequest {
            run_id: RunId::derived("simulation", "any"),
            step: 0,
            model: request.model.clone(),
            system: Some(request.system.clone()),
            tools: request.tools.iter().map(|tool| SentTool::of(tool)).collect(),
            options: serde_json::to_value(&request.options).unwrap(),
            messages: request.messages.clone(),
            window: None,
            budget: None,
            text_limits: request.messages.iter().flat_map(text_limits).collect(),
            missing: Vec::new(),
        };
        self.witness.seen().requests.insert(digest_of(&received));
        for message in request.messages.iter().filter(|message| message.role == Role::User) {
            for part in &message.parts {
                if let Part::Text(text) = part {
                    self.witness.seen().heard.entry(text.text.clone()).or_insert_with(Instant::now);
                }
            }
        }
    }

    fn text(&self) -> (String, Vec<Step>) {
        let number = self.number();
        let words = 1 + self.dice.below(6);
        let spoken: Vec<String> = (0..words).map(|word| format!("answer-{number}.{word} ")).collect();
        (spoken.concat(), spoken.into_iter().map(|word| Step::Says(ModelEvent::Text(word))).collect())
    }

    /// Returns a call in two deltas. The second one may be missing.
    fn call(&self, index: usize, is_cut: bool) -> Vec<Step> {
        // Sometimes a number that was used before.
        let number = if !is_cut && self.dice.chance(50) { self.dice.below(3) } else { FRESH + self.number() };
        let name = self.dice.pick(&TOOLS);
        let provider_call_id = format!("toolu_{number}");
        let mut steps = vec![
            Step::Says(ModelEvent::ToolCallStarted { index, provider_call_id, name: name.to_owned() }),
            Step::Says(ModelEvent::ToolCallArguments { index, delta: format!("{{\"n\":{number}") }),
        ];
        if is_cut {
            self.witness.seen().cut_calls.insert(number);
        } else {
            steps.push(Step::Says(ModelEvent::ToolCallArguments { index, delta: "}".to_owned() }));
        }
        steps
    }

    fn script(&self, request: &ModelRequest) -> Vec<Step> {
        let with_tools = !request.tools.is_empty();
        if self.dice.chance(self.options.trouble) {
            return self.trouble(with_tools);
        }
        if request.system.contains("[done()]") && self.dice.chance(800) {
            let plan = "[step(\"plan-step\")] [step(\"plan-step two\")] [step(\"plan-step after step 1\")] [done()]".to_owned();
            return vec![Step::Says(ModelEvent::Text(plan.clone())), Step::Ends(ModelFinish::Stop, plan)];
        }
        let (text, mut steps) = self.text();
        if self.dice.chance(200) {
            steps.insert(0, Step::Says(ModelEvent::Reasoning("hm ".to_owned())));
        }
        if with_tools && self.dice.chance(500) {
            let is_alone = self.dice.chance(500);
            if is_alone {
                steps.clear();
            }
            for index in 0..=usize::try_from(self.dice.below(3)).unwrap() {
                steps.extend(self.call(index, false));
            }
            steps.push(Step::Ends(ModelFinish::ToolCalls, if is_alone { String::new() } else { text }));
        } else {
            // The request was changed after a refusal.
            if request.messages.len() % 5 == 4 {
                let (change, reason) = ("images_left_out".to_owned(), "no images".to_owned());
                steps.insert(0, Step::Says(ModelEvent::Adapted(Adaptation { change, reason })));
            }
            let usage = Usage { input_tokens: 10, output_tokens: 5, ..Usage::default() };
            steps.push(Step::Says(ModelEvent::Usage(usage)));
            steps.push(Step::Ends(ModelFinish::Stop, text));
        }
        steps
    }

    fn trouble(&self, with_tools: bool) -> Vec<Step> {
        let (text, mut steps) = self.text();
        match self.dice.below(if with_tools { 10 } else { 7 }) {
            0 => {
                let kinds = [ModelErrorKind::RateLimit, ModelErrorKind::Overloaded, ModelErrorKind::Network];
                return vec![Step::Fails(self.dice.pick(&kinds))];
            }
            1 => return vec![Step::Fails(self.dice.pick(&[ModelErrorKind::Auth, ModelErrorKind::ContextOverflow]))],
            2 => steps.push(Step::Fails(ModelErrorKind::IncompleteStream)),
            3 => return vec![Step::Ends(ModelFinish::Stop, String::new())],
            4 => steps.push(Step::Hangs),
            5 => steps.push(Step::Ends(ModelFinish::Length, text)),
            6 => {
                let (text, said) = self.text();
                steps.push(Step::Restarts);
                steps.extend(said);
                steps.push(Step::Ends(ModelFinish::Stop, text));
            }
            // Truncated calls: by the output limit, or by a broken connection.
            7 => {
                steps.extend(self.call(0, true));
                steps.push(Step::Ends(ModelFinish::Length, text));
            }
            _ => {
                steps.extend(self.call(0, true));
                if self.options.bug == Some(Bug::CutCallRun) {
                    steps.push(Step::Says(ModelEvent::ToolCallArguments { index: 0, delta: "}".to_owned() }));
                    steps.push(Step::Ends(ModelFinish::ToolCalls, text));
                } else {
                    steps.push(Step::Fails(ModelErrorKind::IncompleteStream));
                }
            }
        }
        steps
    }
}

#[async_trait]
impl ModelClient for Mind {
    async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.dice.stumble().await;
        self.gate.pass().await;
        self.listen(&request);
        let steps = self.script(&request);
        self.dice.note(format_args!("{} asks a model, which has {} things to say", self.name, steps.len()));
        if let [Step::Fails(kind)] = steps.as_slice() {
            return Err(ModelError::new(*kind, "no luck"));
        }
        // Some models are so slow that other events happen meanwhile.
        let pace = self.dice.pick(&[0, 50, 1_000]);
        let (dice, gate, witness) = (Arc::clone(&self.dice), Arc::clone(&self.gate), Arc::clone(&self.witness));
        let saying = stream::unfold(steps.into_iter(), move |mut steps| {
            let (dice, gate, witness) = (Arc::clone(&dice), Arc::clone(&gate), Arc::clone(&witness));
            async move {
                let step = steps.next()?;
                dice.stumble().await;
                dice.sleep(0, pace).await;
                gate.pass().await;
                let said = match step {
                    Step::Says(event) => Ok(event),
                    Step::Restarts => Ok(ModelEvent::Restarted),
                    Step::Fails(kind) => Err(ModelError::new(kind, "the line is cut")),
                    Step::Hangs => {
                        dice.sleep(1_000, 20_000).await;
                        gate.pass().await;
                        Err(ModelError::new(ModelErrorKind::Timeout, "nothing comes"))
                    }
                    Step::Ends(finish, text) => {
                        witness.seen().whole_answers.insert(text);
                        Ok(ModelEvent::Finished(finish))
                    }
                };
                Some((said, steps))
            }
        });
        Ok(saying.boxed())
    }
}
