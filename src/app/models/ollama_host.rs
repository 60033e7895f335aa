//! The address of Ollama. Must not know other providers.

pub(super) const OLLAMA: &str = "ollama";

/// The advice for an Ollama without a chat model.
pub(super) const OLLAMA_PULL: &str = "get a chat model with `ollama pull`";

/// Reads `OLLAMA_HOST` as Ollama does: a host, a port, both, or a URL, perhaps in quotes. The address of all interfaces means this
/// machine.
pub(super) fn ollama_url(host: &str) -> String {
    const PORT: &str = "11434";
    let host = host.trim().trim_matches(['"', '\'']).trim();
    let (scheme, rest) = host.split_once("://").unwrap_or(("", host));
    let (authority, path) = rest.split_once('/').map_or((rest, String::new()), |(authority, path)| (authority, format!("/{path}")));
    let (user, authority) = authority.rsplit_once('@').map_or(("", authority), |(user, authority)| (user, authority));
    let is_bare_v6 = authority.parse::<std::net::Ipv6Addr>().is_ok();
    let (name, port) = match authority.rsplit_once(':').filter(|_| !is_bare_v6 && !authority.ends_with(']')) {
        Some((name, port)) => (name, port.parse::<u16>().map_or(PORT.to_owned(), |port| port.to_string())),
        None => (
            authority,
            match scheme {
                "http" => "80".to_owned(),
                "https" => "443".to_owned(),
                _ => PORT.to_owned(),
            },
        ),
    };
    let name = match name.trim_matches(['[', ']']) {
        "" | "0.0.0.0" => "127.0.0.1".to_owned(),
        "::" => "[::1]".to_owned(),
        v6 if v6.contains(':') => format!("[{v6}]"),
        name => name.to_owned(),
    };
    let scheme = if scheme.is_empty() { "http" } else { scheme };
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    format!("{scheme}://{user}{name}:{port}{}", path.trim_end_matches('/'))
}
