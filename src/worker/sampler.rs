//! What servers have a model say in the middle of a call: the run's own model, on the run's account.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::WorkerDeps;
use super::one_answer::one_answer;
use super::registry::Held;
use crate::domain::agent::AgentProfile;
use crate::domain::budget::Amount;
use crate::domain::ids::{ConversationId, MessageId, PartId, RunId, UserId};
use crate::domain::message::{Message, Role, TextPart};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish, ModelRequest, Usage};
use crate::tools::{Sampled, Samples, SamplingRequest};

/// How long a model may take: its server waits, and so does the run.
const PATIENCE: Duration = Duration::from_secs(120);

/// What models have used for servers.
#[derive(Debug, Clone, Default)]
pub struct Spending(Arc<Mutex<Spent>>);

#[derive(Debug, Default)]
struct Spent {
    /// Since somebody took it, to charge it.
    uncharged: Usage,
    /// With all else that the run has used.
    of_run: Usage,
}

impl Spending {
    fn add(&self, usage: Usage) {
        let mut spent = self.spent();
        spent.uncharged.add(usage);
        spent.of_run.add(usage);
    }

    /// What it is, which is then somebody's to charge.
    pub fn take(&self) -> Usage {
        std::mem::take(&mut self.spent().uncharged)
    }

    /// What somebody took could not be charged.
    pub fn give_back(&self, usage: Usage) {
        self.spent().uncharged.add(usage);
    }

    /// What the run has been charged with by now.
    pub fn know_charged(&self, charged: Usage) {
        let mut spent = self.spent();
        spent.of_run = charged;
        let uncharged = spent.uncharged;
        spent.of_run.add(uncharged);
    }

    /// Why the model of a run with this profile is not asked for servers any more.
    fn forbids(&self, profile: &AgentProfile) -> Option<&'static str> {
        if profile.budget.is_shared() {
            // What counts for others is reserved before a model is asked, and these calls are nobody's step.
            return Some("the run has a budget together with others, in which this could not be counted");
        }
        let used = Amount::of(&self.spent().of_run);
        let is_over = profile.max_run_tokens > 0 && used.tokens >= profile.max_run_tokens
            || profile.budget.run_usd.is_some_and(|most| used.cost >= most.cost());
        is_over.then_some("the run has used what it may")
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// What the run may spend.
    pub profile: Arc<AgentProfile>,
}

impl Sampler {
    /// Asks the model, and hands on its answer, unless the call is over before.
    pub async fn answer(&self, samples: Samples) {
        let Samples { request, mut answer } = samples;
        // The process may have been stopped since the call began: then another one may have the run.
        let lost = (!self.held.is_fresh(self.self_stop)).then_some("the run is not here any more");
        // Each time: what it has had a model say before in the same call, and what others have meanwhile, counts.
        if let Some(reason) = self.spending.forbids(&self.profile).or(lost) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::budget::Allowance;

    fn used(tokens: u64) -> Usage {
        Usage { input_tokens: tokens, ..Usage::default() }
    }

    #[test]
    fn a_limit_of_the_run_counts_during_a_call() {
        let mut profile = AgentProfile { max_run_tokens: 100, ..AgentProfile::default() };
        let spending = Spending::default();
        spending.know_charged(used(40));
        spending.add(used(50));
        assert_eq!((spending.forbids(&profile), spending.take()), (None, used(50)));
        // What was taken to be charged is spent all the same, and so it is when it has been charged.
        spending.add(used(9));
        spending.know_charged(used(90));
        assert_eq!(spending.forbids(&profile), None);
        spending.add(used(1));
        assert!(spending.forbids(&profile).is_some_and(|why| why.contains("used what it may")));
        profile.max_run_tokens = 0;
        assert_eq!(spending.forbids(&profile), None);
        profile.budget.conversation = Allowance { tokens: Some(1_000_000), usd: None };
        assert!(spending.forbids(&profile).is_some_and(|why| why.contains("together with others")));
    }
}
