//! Web origins (RFC 6454) as operators write them.

use reqwest::Url;

/// Returns an origin as browsers send it in `Origin`: scheme and host in lower case, no default port, no slash at the end.
pub fn parse_origin(text: &str) -> Result<String, String> {
    let wrong = |reason: &str| {
        Err(format!(
            "{text:?} {reason}: write each origin as scheme://host or scheme://host:port, such as https://chat.example.org"
        ))
    };
    if text.contains('*') {
        return wrong("is a pattern, and patterns are not supported");
    }
    if text.trim() != text || !text.contains("://") {
        return wrong("is not an origin");
    }
    let Ok(url) = Url::parse(text) else { return wrong("is not an origin") };
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else { return wrong("has no host") };
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("has a user");
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return wrong("has more than scheme, host and port");
    }
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    Ok(format!("{}://{}{port}", url.scheme(), host.to_ascii_lowercase()))
}

/// Checks the name or address of a host, without scheme, port and path.
pub fn check_host(text: &str) -> Result<(), String> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    if is_address || (!text.is_empty() && text.chars().all(fits)) {
        return Ok(());
    }
    let reason = if text.contains('*') { "is a pattern, and patterns are not supported" } else { "is not the name of a host" };
    Err(format!("{text:?} {reason}: write the name alone, without scheme, port and path, such as chat.example.org"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://a.example", "https://a.example")]
    #[case("HTTPS://A.Example/", "https://a.example")]
    #[case("https://a.example:443", "https://a.example")]
    #[case("http://a.example:8080/", "http://a.example:8080")]
    #[case("http://[::1]:3000", "http://[::1]:3000")]
    #[case("capacitor://localhost", "capacitor://localhost")]
    #[case("chrome-extension://AbC/", "chrome-extension://abc")]
    fn origin_is_normalized(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(parse_origin(text), Ok(expected.to_owned()));
    }

    #[rstest]
    #[case("*", "pattern")]
    #[case("https://*.example.org", "pattern")]
    #[case("https://a.example:*", "pattern")]
    #[case("", "not an origin")]
    #[case("null", "not an origin")]
    #[case("a.example", "not an origin")]
    #[case("localhost:3000", "not an origin")]
    #[case("https:a.example", "not an origin")]
    #[case(" https://a.example", "not an origin")]
    #[case("https://a.example,https://b.example", "more than")]
    #[case("https://a.example/app", "more than")]
    #[case("https://a.example?x", "more than")]
    #[case("https://a.example#x", "more than")]
    #[case("https://me@a.example", "user")]
    #[case("https://", "not an origin")]
    #[case("file:///", "no host")]
    fn text_that_is_no_origin_is_refused(#[case] text: &str, #[case] reason: &str) {
        let error = parse_origin(text).unwrap_err();
        assert!(error.contains(reason) && error.contains(&format!("{text:?}")), "{error}");
    }

    #[rstest]
    #[case("chat.example.org", true)]
    #[case("capstan", true)]
    #[case("::1", true)]
    #[case("10.0.0.1", true)]
    #[case("*", false)]
    #[case("*.example.org", false)]
    #[case("https://chat.example.org", false)]
    #[case("chat.example.org:8080", false)]
    #[case("chat.example.org/", false)]
    #[case("", false)]
    fn host_has_no_scheme_port_or_pattern(#[case] text: &str, #[case] fits: bool) {
        assert_eq!(check_host(text).is_ok(), fits);
    }
}
