//! Routes with their OpenAPI descriptions. The start of the server builds only the router. The first request for the OpenAPI
//! document builds the document, because this takes longer than any other part of the start.

use axum::routing::{MethodFilter, MethodRouter};
use axum::{Extension, Router};
use utoipa::openapi::{HttpMethod, OpenApi};
use utoipa_axum::PathItemExt as _;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};

use crate::http::options::App;

#[derive(Default)]
pub(in crate::http) struct ApiRouter {
    router: Router<App>,
    descriptions: Vec<fn() -> UtoipaMethodRouter<App>>,
}

/// Handlers of one path, as [`routes!`] returns them.
pub(in crate::http) struct ApiRoute {
    pub path: String,
    pub methods: MethodRouter<App>,
    pub description: fn() -> UtoipaMethodRouter<App>,
}

impl ApiRouter {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn routes(mut self, route: ApiRoute) -> Self {
        self.router = self.router.route(&route.path, route.methods);
        self.descriptions.push(route.description);
        self
    }

    /// Adds a route that the document leaves out.
    pub fn undocumented_route(mut self, path: &str, methods: MethodRouter<App>) -> Self {
        self.router = self.router.route(path, methods);
        self
    }

    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.descriptions.extend(other.descriptions);
        self
    }

    /// Gives the handlers of these routes a value that they extract with [`Extension`].
    pub fn with_extension<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.router = self.router.layer(Extension(value));
        self
    }

    pub fn into_router(self) -> Router<App> {
        self.router
    }

    /// Returns `base` with the operations of these routes, and with the schemas to which they refer.
    pub fn document(self, base: OpenApi) -> OpenApi {
        let described =
            self.descriptions.into_iter().fold(OpenApiRouter::with_openapi(base), |all, describe| all.routes(describe()));
        described.into_openapi()
    }
}

pub(in crate::http) fn method_filter(methods: &[HttpMethod]) -> MethodFilter {
    let filters = methods.iter().map(HttpMethod::to_method_filter);
    filters.reduce(MethodFilter::or).unwrap_or(MethodFilter::GET)
}

/// Returns the route of handlers that have one path and are annotated with `#[utoipa::path]`.
macro_rules! routes {
    ($first:path $(, $other:path)* $(,)?) => {
        $crate::http::api_router::ApiRoute {
            path: utoipa_axum::paste! { utoipa_axum::routes!(@path [path()] of $first) },
            methods: axum::routing::MethodRouter::new()
                .on($crate::http::api_router::routes!(@methods $first), $first)
                $(.on($crate::http::api_router::routes!(@methods $other), $other))*,
            description: || utoipa_axum::routes!($first $(, $other)*),
        }
    };
    (@methods $handler:path) => {
        $crate::http::api_router::method_filter(&utoipa_axum::paste! { utoipa_axum::routes!(@path [methods()] of $handler) })
    };
}

pub(in crate::http) use routes;
