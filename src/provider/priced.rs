//! Puts what tokens cost before an answer.

use futures_util::StreamExt as _;

use super::model_client::ModelStream;
use crate::domain::cost::Prices;
use crate::domain::model::ModelEvent;

/// The same answer, behind its prices: whoever counts its tokens, or has to estimate them because it broke off, knows their cost.
#[must_use]
pub fn priced(stream: ModelStream, prices: Option<Prices>) -> ModelStream {
    let Some(prices) = prices else { return stream };
    Box::pin(futures_util::stream::iter([Ok(ModelEvent::Prices(prices))]).chain(stream))
}
