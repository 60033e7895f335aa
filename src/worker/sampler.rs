//! What servers have a model say in the middle of a call: the run's own model, on the run's account.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::WorkerDeps;
use super::one_answer::one_answer;
use super::registry::Held;
use crate::domain::budget::Amount;
use crate::domain::ids::{ConversationId, MessageId, PartId, RunId, UserId};
use crate::domain::message::{Message, Role, TextPart};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish, ModelRequest, Usage};
use crate::engine::RunState;
use crate::tools::{Sampled, Samples, SamplingRequest};

/// How long a model may take: its server waits, and so does the run.
const PATIENCE: Duration = Duration::from_secs(120);

/// What models have used for servers since somebody looked.
#[derive(Debug, Clone, Default)]
pub struct Spending(Arc<Mutex<Usage>>);

impl Spending {
    fn add(&self, usage: Usage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(usage);
    }

    /// What it is, which is then somebody's to charge.
    pub fn take(&self) -> Usage {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Has the model of a run answer servers.
pub struct Sampler {
    /// Where models are.
    pub deps: WorkerDeps,
    /// The run, as this process has it.
    pub held: Held,
    /// How long it may have had it without a renewal.
    pub self_stop: Duration,
    /// Who pays.
    pub owner: UserId,
    /// The model that the run has now.
    pub model: String,
    /// The tokens that its requests have room in, where somebody has said it.
    pub window: Option<u64>,
    /// The tool that is being called.
    pub tool: String,
    /// Where is noted what it takes.
    pub spending: Spending,
    /// Why no model is asked, if that is so.
    pub refused: Option<&'static str>,
}

/// Why the model of a run is not asked for servers.
pub fn refused(run: &RunState) -> Option<&'static str> {
    let (profile, used) = (&run.record.profile, Amount::of(&run.record.usage));
    if !profile.budget.day.is_none() {
        // What counts for the day is reserved before a model is asked, and these calls are nobody's step.
        return Some("the run has a budget for the day, in which this could not be counted");
    }
    let is_over = profile.max_run_tokens > 0 && used.tokens >= profile.max_run_tokens
        || profile.budget.run_usd.is_some_and(|most| used.cost >= most.cost());
    is_over.then_some("the run has used what it may")
}

impl Sampler {
    /// Asks the model, and hands on its answer, unless the call is over before.
    pub async fn answer(&self, samples: Samples) {
        let Samples { request, mut answer } = samples;
        // The process may have been stopped since the call began: then another one may have the run.
        let lost = (!self.held.is_fresh(self.self_stop)).then_some("the run is not here any more");
        if let Some(reason) = self.refused.or(lost) {
            let _ = answer.send(Err(reason.to_owned()));
            return;
        }
        let over = async {
            tokio::select! {
                biased;
                () = answer.closed() => ModelError::new(ModelErrorKind::Unavailable, "the call is over"),
                () = tokio::time::sleep(PATIENCE) => ModelError::new(ModelErrorKind::Timeout, "the model has not answered in time"),
            }
        };
        let of = self.of();
        let (said, usage) = one_answer(&self.deps, self.asked(request), of, over).await;
        self.spending.add(usage);
        let (input, output) = (usage.input_tokens, usage.output_tokens);
        metrics::counter!("capstan_tokens_total", "direction" => "input").increment(input);
        metrics::counter!("capstan_tokens_total", "direction" => "output").increment(output);
        tracing::info!(tool.name = self.tool, model = self.model, input, output, "a server has had a model say something");
        let said = match said {
            Ok((message, turn)) => {
                Ok(Sampled { model: self.model.clone(), text: message.text(), is_cut: turn.finish == ModelFinish::Length })
            }
            Err(error) => Err(format!("the model has not answered: {}", error.kind.code())),
        };
        let _ = answer.send(said);
    }

    fn of(&self) -> (RunId, ConversationId) {
        (self.held.fence.run_id.clone(), self.held.fence.conversation_id.clone())
    }

    fn asked(&self, request: SamplingRequest) -> ModelRequest {
        let SamplingRequest { system, turns, options } = request;
        let ids = self.deps.ids.as_ref();
        let message = |(role, text): (Role, String)| {
            Message::of_request(MessageId::generate(ids), self.of(), role, TextPart { id: PartId::generate(ids), text })
        };
        ModelRequest {
            owner: Some(self.owner.clone()),
            model: self.model.clone(),
            system,
            messages: turns.into_iter().map(message).collect(),
            tools: Vec::new(),
            options,
            window: self.window,
        }
    }
}
