//! Vectors of texts for clients.

use crate::domain::access::principal::Principal;
use crate::domain::model::embeddings::Embeddings;
use crate::domain::model::{ModelError, ModelErrorKind};
use crate::domain::run::budget::{Allowance, Amount, ReservationOutcome};
use crate::service::{Error, Result, Service};
use crate::store::EmbeddingCharge;

/// Bytes of text that are estimated as one token before a call.
const BYTES_PER_TOKEN: u64 = 4;

impl Service {
    /// Returns the vectors of texts by a model that the principal's runs can use, written as `provider/name`. Does not retry failed
    /// calls.
    ///
    /// The server's budget of the owner's day applies as to a model call of a run: the request is refused if its estimated cost
    /// exceeds the rest. If the process or the client ends during the call, the estimate stays charged.
    pub async fn embeddings(
        &self,
        principal: &Principal,
        model: &str,
        texts: &[String],
        dimensions: Option<u32>,
    ) -> Result<Embeddings> {
        let (endpoints, owner, day) = (&self.provider_deps()?.endpoints, &principal.user_id, self.limits.day);
        let failed = |error: ModelError| match error.request_not_sent && error.kind == ModelErrorKind::InvalidRequest {
            true => Error::UnknownModel(model.to_owned()),
            false => Error::Provider(error),
        };
        let prices = endpoints.embedding_prices(owner, model).await.map_err(failed)?;
        if day.usd.is_some() && prices.is_none() {
            return Err(Error::UnpricedModel(model.to_owned()));
        }
        let amount = |tokens: u64| Amount::at_most(tokens, Some(0), prices.as_ref());
        let bytes = texts.iter().map(|text| text.len() as u64).sum::<u64>();
        let estimate = bytes.div_ceil(BYTES_PER_TOKEN);
        let reserved = match day == Allowance::default() {
            true => None,
            false => match self.store.reserve_embeddings(owner, amount(estimate), day).await? {
                ReservationOutcome::Granted { day } => Some((day, amount(estimate))),
                ReservationOutcome::Busy => return Err(Error::BudgetReserved),
                ReservationOutcome::Spent { spent, .. } => return Err(spent_budget(day, spent, amount(estimate))),
            },
        };
        let embedded = endpoints.embed(owner, model, texts, dimensions).await;
        let used = embedded.as_ref().ok().map(|embedded| {
            // Some providers report no usage.
            let tokens = if embedded.input_tokens == 0 { estimate } else { embedded.input_tokens };
            metrics::counter!("capstan_embedding_tokens_total").increment(tokens);
            (model.to_owned(), amount(tokens))
        });
        self.store.charge_embeddings(owner, &EmbeddingCharge { reserved, used, is_cost_known: prices.is_some() }).await?;
        embedded.map_err(failed)
    }
}

fn spent_budget(day: Allowance, spent: Amount, wanted: Amount) -> Error {
    let tokens = day.tokens.map(|most| {
        let (spent, wanted) = (spent.tokens, wanted.tokens);
        format!("{spent} of {most} tokens are used, and the request may need {wanted} (limits.max_day_tokens_per_owner)")
    });
    let money = day.usd.map(|most| {
        let (spent, wanted) = (spent.cost, wanted.cost);
        format!("{spent} of {most} US dollars are spent, and the request may cost {wanted} (limits.max_day_usd_per_owner)")
    });
    let limits: Vec<String> = tokens.into_iter().chain(money).collect();
    Error::BudgetSpent(format!("the budget of the day (UTC) is used up: {}; try again tomorrow", limits.join("; ")))
}
