//! The environment variables that the process of an MCP server inherits from Capstan; all others are removed.
//!
//! Owns the list of these variables. Must not know the variables of a server's entry, which are added later and replace them.

use crate::tools::Environment;

const INHERITED: [&str; 12] = [
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TERM",
    "TMPDIR",
    "TZ",
    // The certificate authorities of a company's network, by the names of OpenSSL, Node, Python and curl.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

/// The proxy variables, which are inherited without user and password.
pub const PROXIES: [&str; 8] =
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// Returns the inherited variables that are set.
pub(super) fn inherited_variables(environment: &Environment) -> impl Iterator<Item = (&'static str, String)> {
    let unchanged = INHERITED.into_iter().filter_map(move |name| Some((name, environment(name)?)));
    let proxies = PROXIES.into_iter().filter_map(move |name| Some((name, without_login(&environment(name)?))));
    unchanged.chain(proxies)
}

/// Returns the URL of a proxy without user and password.
pub fn without_login(proxy: &str) -> String {
    let (scheme, rest) = proxy.split_at(proxy.find("://").map_or(0, |at| at + 3));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_of_child_has_no_login() {
        for (proxy, visible) in [
            ("http://ann:pw@proxy:3128", "http://proxy:3128"),
            ("ann:p@w@proxy:3128", "proxy:3128"),
            ("http://proxy:3128/", "http://proxy:3128/"),
            ("localhost,.example", "localhost,.example"),
        ] {
            assert_eq!(without_login(proxy), visible);
        }
    }
}
