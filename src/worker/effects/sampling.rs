//! MCP sampling: the run's model answers for a server during a call, and the run is charged.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::domain::agent::AgentProfile;
use crate::domain::conversation::{Message, Role, TextPart};
use crate::domain::ids::{MessageId, PartId, UserId};
use crate::domain::model::{ModelError, ModelErrorKind, ModelFinish, ModelRequest, Usage};
use crate::support::locks::lock;
use crate::tools::{SamplingAnswer, SamplingCall, SamplingRequest};
use crate::worker::WorkerDeps;
use crate::worker::effects::single_answer::one_answer;
use crate::worker::leases::registry::ActiveLease;
use crate::worker::run::run_metrics;

/// The time limit of an answer, for which the server and the run wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// The usage of sampling.
#[derive(Debug, Clone, Default)]
pub struct SamplingUsage(Arc<Mutex<SamplingUsageState>>);

#[derive(Debug, Default)]
struct SamplingUsageState {
    /// Since the last charge.
    uncharged: Usage,
    /// With all other usage of the run.
    run_total: Usage,
}

impl SamplingUsage {
    fn add(&self, usage: Usage) {
        let mut spent = lock(&self.0);
        spent.uncharged.add(usage);
        spent.run_total.add(usage);
    }

    /// Returns and resets the uncharged usage, which the caller will charge.
    pub fn take(&self) -> Usage {
        std::mem::take(&mut lock(&self.0).uncharged)
    }

    /// Adds usage back that could not be charged.
    pub fn add_uncharged(&self, usage: Usage) {
        lock(&self.0).uncharged.add(usage);
    }

    /// Sets the usage that the run was charged.
    pub fn know_charged(&self, charged: Usage) {
        let mut spent = lock(&self.0);
        spent.run_total = charged;
        let uncharged = spent.uncharged;
        spent.run_total.add(uncharged);
    }

    /// Returns why a run with this profile must not use sampling.
    fn reason_against(&self, profile: &AgentProfile) -> Option<&'static str> {
        if profile.budget.is_shared() {
            // Shared budgets need a reservation, and these calls belong to no step.
            return Some("the run has a shared budget, in which sampling cannot be reserved");
        }
        profile.is_spent(lock(&self.0).run_total).then_some("the run has used up its limit of tokens or money")
    }
}

pub struct Sampler {
    pub deps: WorkerDeps,
    pub active_lease: ActiveLease,
    /// The longest time without a renewal of the lease.
    pub self_stop: Duration,
    pub owner: UserId,
    /// The run's current model.
    pub model: String,
    /// The context window that the agent configures.
    pub window: Option<u64>,
    /// The tool of the call.
    pub tool: String,
    pub spending: SamplingUsage,
    pub profile: Arc<AgentProfile>,
}

impl Sampler {
    /// Asks the model, and passes its answer to the server, unless the call has ended.
    pub async fn answer(&self, samples: SamplingCall) {
        let SamplingCall { request, mut answer } = samples;
        // The process may have been suspended since the call began, and another worker may have claimed the run.
        let lost = (!self.active_lease.is_fresh(self.self_stop)).then_some("this process no longer holds the run");
        // Checked each time, because earlier sampling counts, in this call and in others.
        if let Some(reason) = self.spending.reason_against(&self.profile).or(lost) {
            let _ = answer.send(Err(reason.to_owned()));
            return;
        }
        let over = async {
            tokio::select! {
                biased;
                () = answer.closed() => ModelError::new(ModelErrorKind::Unavailable, "the call has ended"),
                () = tokio::time::sleep(ANSWER_LIMIT) => ModelError::new(ModelErrorKind::Timeout, "the model did not answer in time"),
            }
        };
        let (answered, usage) = one_answer(&self.deps, self.model_request(request), self.active_lease.fence.ids(), over).await;
        self.spending.add(usage);
        let (input, output) = (usage.input_tokens, usage.output_tokens);
        run_metrics::count_tokens(&usage, &run_metrics::provider_label(&self.model));
        tracing::info!(tool.name = self.tool, model = self.model, input, output, "MCP sampling request completed");
        let answered = match answered {
            Ok((message, turn)) => {
                Ok(SamplingAnswer { model: self.model.clone(), text: message.text(), is_cut: turn.finish == ModelFinish::Length })
            }
            Err(error) => Err(format!("the model did not answer: {}", error.kind.code())),
        };
        let _ = answer.send(answered);
    }

    fn model_request(&self, request: SamplingRequest) -> ModelRequest {
        let SamplingRequest { system, turns, options } = request;
        let ids = self.deps.ids.as_ref();
        let message = |(role, text): (Role, String)| {
            Message::of_request(
                MessageId::generate(ids),
                self.active_lease.fence.ids(),
                role,
                TextPart { id: PartId::generate(ids), text },
            )
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
        let spending = SamplingUsage::default();
        spending.know_charged(used(40));
        spending.add(used(50));
        assert_eq!((spending.reason_against(&profile), spending.take()), (None, used(50)));
        // Usage that was taken for a charge counts until it is charged, and is not counted twice afterwards.
        spending.add(used(9));
        spending.know_charged(used(90));
        assert_eq!(spending.reason_against(&profile), None);
        spending.add(used(1));
        assert!(spending.reason_against(&profile).is_some_and(|why| why.contains("used up its limit")));
        profile.max_run_tokens = 0;
        assert_eq!(spending.reason_against(&profile), None);
        profile.budget.conversation = Allowance { tokens: Some(1_000_000), usd: None };
        assert!(spending.reason_against(&profile).is_some_and(|why| why.contains("shared budget")));
    }
}
