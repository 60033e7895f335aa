//! The client that selects a provider's client by the part of the model's name before the first slash.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

use super::model_client::{ModelClient, ModelStream};
use crate::domain::ids::UserId;
use crate::domain::model::{ModelError, ModelErrorKind, ModelRequest};
use crate::domain::run::Capacity;

/// Sends each request to the client of its provider. That client gets the bare name of the model.
#[derive(Default, Clone)]
pub struct Router {
    clients: BTreeMap<String, Arc<dyn ModelClient>>,
}

impl Router {
    /// Adds or replaces a provider.
    pub fn with(mut self, provider: impl Into<String>, client: Arc<dyn ModelClient>) -> Self {
        self.clients.insert(provider.into(), client);
        self
    }

    /// Returns whether `model`, a `provider/name`, has a known provider. The provider may have no such model.
    pub fn has_provider(&self, model: &str) -> bool {
        self.route(model).is_some()
    }

    pub fn providers(&self) -> Vec<String> {
        self.clients.keys().cloned().collect()
    }

    fn route<'a>(&self, model: &'a str) -> Option<(&Arc<dyn ModelClient>, &'a str)> {
        let (provider, name) = model.split_once('/')?;
        if name.is_empty() {
            return None;
        }
        Some((self.clients.get(provider)?, name))
    }
}

#[async_trait]
impl ModelClient for Router {
    async fn stream(&self, mut request: ModelRequest) -> Result<ModelStream, ModelError> {
        let Some((client, name)) = self.route(&request.model) else {
            let configured = if self.clients.is_empty() { "none".to_owned() } else { self.providers().join(", ") };
            let message = format!(
                "no provider for model {:?}: a model is provider/name, and the configured providers are: {configured}",
                request.model
            );
            return Err(ModelError::new(ModelErrorKind::InvalidRequest, &message));
        };
        let (client, name) = (Arc::clone(client), name.to_owned());
        request.model = name;
        client.stream(request).await
    }

    async fn capacity(&self, owner: &UserId, model: &str) -> Capacity {
        match self.route(model) {
            Some((client, name)) => client.capacity(owner, name).await,
            None => Capacity::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::{ModelEvent, ModelFinish};
    use futures_util::StreamExt as _;

    /// Answers with the name of the requested model.
    struct Echo;

    #[async_trait]
    impl ModelClient for Echo {
        async fn stream(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
            let events = [Ok(ModelEvent::Text(request.model)), Ok(ModelEvent::Finished(ModelFinish::Stop))];
            Ok(Box::pin(futures_util::stream::iter(events)))
        }
    }

    fn request(model: &str) -> ModelRequest {
        ModelRequest { model: model.to_owned(), ..ModelRequest::default() }
    }

    #[tokio::test]
    async fn the_client_gets_the_bare_name() {
        let router = Router::default().with("openrouter", Arc::new(Echo)).with("demo", Arc::new(Echo));
        assert_eq!(router.providers(), ["demo", "openrouter"]);
        assert!(router.has_provider("openrouter/meta/llama-3") && !router.has_provider("openai/x") && !router.has_provider("demo"));
        assert!(!router.has_provider("demo/"));

        let mut answer = router.stream(request("openrouter/meta/llama-3")).await.unwrap();
        assert_eq!(answer.next().await, Some(Ok(ModelEvent::Text("meta/llama-3".to_owned()))));

        let error = router.stream(request("openai/gpt-5")).await.err().unwrap();
        assert_eq!(error.kind, ModelErrorKind::InvalidRequest);
        assert!(error.message.ends_with("demo, openrouter"), "{}", error.message);
    }
}
