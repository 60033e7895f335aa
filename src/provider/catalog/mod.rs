//! Facts about providers and models, as data: dialects, URLs, quirks, abilities, prices, error codes and phrases.
//!
//! Owns the TOML tables in its folder. Must not know keys, clients, or the providers that a server is configured with.
//!
//! `models.toml`, `providers.toml` and `quirks.toml` are read here; `errors.toml` and `vendors.toml` in `errors/facts.rs`,
//! `refusals.toml` in `errors/refusals.rs`, `schemas.toml` in `request/schema.rs`, `anthropic.toml` and `gemini.toml` in the
//! `models.rs` of their dialects.

pub(super) mod models;
mod providers;
pub(super) mod quirks;
pub(super) mod table;

pub use self::models::{ModelFacts, model, model_at};
pub use self::providers::{ImageLimits, KnownProvider, image_limits_at, max_tools_at, providers, quirks_at};
pub use self::table::CatalogError;
pub use crate::domain::model::provider::ProviderKind;
