//! Puts the prices of tokens before an answer.

use futures_util::StreamExt as _;

use super::model_client::ModelStream;
use crate::domain::cost::Prices;
use crate::domain::model::ModelEvent;

/// Puts the prices before an answer, so that its reader knows the cost even if the answer breaks off.
#[must_use]
pub fn priced(stream: ModelStream, prices: Option<Prices>) -> ModelStream {
    let Some(prices) = prices else { return stream };
    Box::pin(futures_util::stream::iter([Ok(ModelEvent::Prices(prices))]).chain(stream))
}
