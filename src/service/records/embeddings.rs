//! Vectors of texts for clients.

use crate::domain::access::principal::Principal;
use crate::domain::model::ModelErrorKind;
use crate::domain::model::embeddings::Embeddings;
use crate::service::{Error, Result, Service};

impl Service {
    /// Returns the vectors of texts by a model that the principal's runs can use, written as `provider/name`. Nothing is stored, and no
    /// failure is repeated.
    pub async fn embeddings(
        &self,
        principal: &Principal,
        model: &str,
        texts: &[String],
        dimensions: Option<u32>,
    ) -> Result<Embeddings> {
        let endpoints = &self.provider_deps()?.endpoints;
        match endpoints.embed(&principal.user_id, model, texts, dimensions).await {
            Ok(embeddings) => {
                metrics::counter!("capstan_embedding_tokens_total").increment(embeddings.input_tokens);
                Ok(embeddings)
            }
            Err(error) if error.request_not_sent && error.kind == ModelErrorKind::InvalidRequest => {
                Err(Error::UnknownModel(model.to_owned()))
            }
            Err(error) => Err(Error::Provider(error)),
        }
    }
}
