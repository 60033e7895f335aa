//! MCP sampling: a server has the run's model answer during a call, on the run's account.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::message::{Message, Role, TextPart};
use crate::domain::ids::{MessageId, PartId, UserId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish, ModelRequest, Usage};
use crate::domain::run::budget::Amount;
use crate::support::locks::lock;
use crate::tools::{Sampled, Samples, SamplingRequest};
use crate::worker::WorkerDeps;
use crate::worker::effects::one_answer::one_answer;
use crate::worker::leases::registry::Held;
use crate::worker::run::figures;

/// The time limit of an answer, for which the server and the run wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// The usage of sampling.
#[derive(Debug, Clone, Default)]
pub struct Spending(Arc<Mutex<Spent>>);

#[derive(Debug, Default)]
struct Spent {
    /// Since the last charge.
    uncharged: Usage,
    /// With all other usage of the run.
    of_run: Usage,
}

impl Spending {
    fn add(&self, usage: Usage) {
        let mut spent = self.spent();
        spent.uncharged.add(usage);
        spent.of_run.add(usage);
    }

    /// Takes the usage that the caller will charge.
    pub fn take(&self) -> Usage {
        std::mem::take(&mut self.spent().uncharged)
    }

    /// Returns usage that could not be charged.
    pub fn give_back(&self, usage: Usage) {
        self.spent().uncharged.add(usage);
    }

    /// Sets the usage that the run has been charged.
    pub fn know_charged(&self, charged: Usage) {
        let mut spent = self.spent();
        spent.of_run = charged;
        let uncharged = spent.uncharged;
        spent.of_run.add(uncharged);
    }

    /// Returns why a run with this profile may not use sampling.
    fn forbids(&self, profile: &AgentProfile) -> Option<&'static str> {
        if profile.budget.is_shared() {
            // Shared budgets need a reservation, and these calls belong to no step.
            return Some("the run has a budget together with others, in which this could not be counted");
        }
        let used = Amount::of(&self.spent().of_run);
        let is_over = profile.max_run_tokens > 0 && used.tokens >= profile.max_run_tokens
            || profile.budget.run_usd.is_some_and(|most| used.cost >= most.cost());
        is_over.then_some("the run has used what it may")
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        lock(&self.0)
    }
}

pub struct Sampler {
    pub deps: WorkerDeps,
    pub held: Held,
    /// The longest time without a renewal of the lease.
    pub self_stop: Duration,
    pub owner: UserId,
    /// The run's current model.
    pub model: String,
    /// The context window that the agent sets.
    pub window: Option<u64>,
    /// The tool of the call.
    pub tool: String,
    pub spending: Spending,
    pub profile: Arc<AgentProfile>,
}

impl Sampler {
    /// Asks the model, and passes on its answer, unless the call is over before.
    pub async fn answer(&self, samples: Samples) {
        let Samples { request, mut answer } = samples;
        // The process may have been stopped since the call began, and another one may have the run.
        let lost = (!self.held.is_fresh(self.self_stop)).then_some("the run is not here any more");
        // Checked each time, because earlier sampling counts, in this call and in others.
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
        let (said, usage) = one_answer(&self.deps, self.asked(request), self.held.fence.ids(), over).await;
        self.spending.add(usage);
        let (input, output) = (usage.input_tokens, usage.output_tokens);
        figures::count_tokens(&usage);
        tracing::info!(tool.name = self.tool, model = self.model, input, output, "a server has had a model say something");
        let said = match said {
            Ok((message, turn)) => {
                Ok(Sampled { model: self.model.clone(), text: message.text(), is_cut: turn.finish == ModelFinish::Length })
            }
            Err(error) => Err(format!("the model has not answered: {}", error.kind.code())),
        };
        let _ = answer.send(said);
    }

    fn asked(&self, request: SamplingRequest) -> ModelRequest {
        let SamplingRequest { system, turns, options } = request;
        let ids = self.deps.ids.as_ref();
        let message = |(role, text): (Role, String)| {
            Message::of_request(MessageId::generate(ids), self.held.fence.ids(), role, TextPart { id: PartId::generate(ids), text })
        };
        ModelRequest {
            owner: Some(self.owner.clone()),
            model: self.model.clone(),
            system,
            messages: turns.into_iter().map(message).collect(),
            options,
            window: self.window,
            ..ModelRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::run::budget::Allowance;

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
        // Taken usage stays spent before it is charged, and is not counted twice after that.
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
