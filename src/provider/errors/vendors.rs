//! Error codes that only one vendor uses.

use crate::domain::model::{ModelError, ModelErrorKind};
use crate::provider::errors::facts::{VendorCodes, is_specific, vendors};
use crate::provider::http::endpoint::host;

/// The vendor of an endpoint, if it has error codes of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Vendor(Option<&'static VendorCodes>);

impl Vendor {
    /// Returns the vendor of a base URL, by its host.
    pub fn at(base_url: &str) -> Self {
        let Some(host) = host(base_url) else { return Self(None) };
        let is_below = |own: &String| host.strip_suffix(own.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        Self(vendors().values().find(|vendor| vendor.hosts.iter().any(is_below)))
    }

    /// Returns the vendor of a provider by its name, which takes precedence over the host: the host may be a gateway.
    pub fn named(self, provider: &str) -> Self {
        Self(vendors().values().find(|vendor| vendor.providers.iter().any(|name| name == provider)).or(self.0))
    }

    /// Corrects the kind of an error by the vendor's own codes.
    pub(in crate::provider) fn classify(self, mut error: ModelError) -> ModelError {
        let Some(vendor) = self.0 else { return error };
        let codes = error.details.iter().flat_map(|details| &details.codes);
        let by_code = codes.filter_map(|code| vendor.codes.get(code)).copied().next();
        let by_code = by_code.filter(|kind| is_specific(*kind) || error.status.is_none());
        let by_status = || vendor.statuses.get(&error.status?.to_string()).copied();
        if let Some(kind) = by_code.or_else(by_status) {
            error.kind = kind;
            error.retry_after_ms = error.retry_after_ms.filter(|_| kind.is_retryable());
            error.refused_tool = error.refused_tool.filter(|_| kind == ModelErrorKind::InvalidRequest);
            error.refused_signed &= kind == ModelErrorKind::InvalidRequest;
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::model::ErrorDetails;

    fn error(status: Option<u16>, code: &str) -> ModelError {
        let details = ErrorDetails { codes: vec![code.to_owned()], fields: Vec::new() };
        let error = ModelError::new(ModelErrorKind::InvalidRequest, "x");
        ModelError { status, details: Some(Box::new(details)), ..error }
    }

    #[test]
    fn vendor_codes_count_for_their_vendor_only() {
        let zhipu =
            [Vendor::at("https://api.z.ai/api/paas/v4"), Vendor::at("https://open.bigmodel.cn"), Vendor::default().named("zai")];
        for vendor in zhipu {
            assert_eq!(vendor.classify(error(Some(400), "1113")).kind, ModelErrorKind::Quota);
            assert_eq!(vendor.classify(error(Some(400), "2013")).kind, ModelErrorKind::InvalidRequest);
            assert_eq!(vendor.classify(error(Some(434), "x")).kind, ModelErrorKind::InvalidRequest);
        }
        for place in ["https://api.openai.com/v1", "http://127.0.0.1:1", "https://notz.ai", "https://z.ai.example", "z.ai", ""] {
            assert_eq!(Vendor::at(place).classify(error(Some(400), "1113")).kind, ModelErrorKind::InvalidRequest, "{place}");
        }
        let named = |name: &str, status: u16| Vendor::at("http://127.0.0.1:1").named(name).classify(error(Some(status), "")).kind;
        assert_eq!(named("iflow", 449), ModelErrorKind::RateLimit);
        assert_eq!(named("groq", 498), ModelErrorKind::Overloaded);
        assert_eq!(named("openai", 498), ModelErrorKind::InvalidRequest);
    }
}
