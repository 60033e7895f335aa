//! The operator's egress allowlist: non-public destinations that URLs of members may use.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;

/// A host or network, with a port if only that one is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowlistEntry {
    target: AllowlistTarget,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum AllowlistTarget {
    /// In lower case.
    Name(String),
    Net(IpNet),
}

impl AllowlistEntry {
    /// Parses `host`, `10.0.0.5`, `10.0.0.0/8` or `fd00::/8`, each optionally with `:PORT`. An IPv6 address with a port is in brackets.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no host, address or network: write ollama.lan, 10.0.0.5, 10.0.0.0/8 or [fd00::]/8, with :PORT to allow one port only"
            )
        };
        let (host, port) = split_port(text).ok_or_else(wrong)?;
        let (address, bits) = match host.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (host, None),
        };
        let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        match (address.parse::<IpAddr>(), bits) {
            (Ok(address), None) => Ok(Self { target: AllowlistTarget::Net(address.to_canonical().into()), port }),
            (Ok(address), Some(bits)) => {
                let net = bits.parse().ok().and_then(|bits| network(address, bits));
                Ok(Self { target: AllowlistTarget::Net(net.ok_or_else(wrong)?), port })
            }
            (Err(_), None) if is_name(host) => {
                Ok(Self { target: AllowlistTarget::Name(host.trim_end_matches('.').to_ascii_lowercase()), port })
            }
            (Err(_), _) => Err(wrong()),
        }
    }

    fn has_name(&self, host: &str) -> bool {
        matches!(&self.target, AllowlistTarget::Name(name) if name.eq_ignore_ascii_case(host.trim_end_matches('.')))
    }

    fn holds(&self, address: IpAddr) -> bool {
        match &self.target {
            AllowlistTarget::Name(_) => false,
            AllowlistTarget::Net(net) => net.contains(&address.to_canonical()),
        }
    }
}

/// Returns a network. An IPv4-mapped IPv6 network becomes IPv4, as addresses do before they are compared.
fn network(address: IpAddr, bits: u8) -> Option<IpNet> {
    match address.to_canonical() {
        // A shorter prefix would include addresses that are not IPv4.
        canonical if canonical != address => IpNet::new(canonical, bits.checked_sub(96)?).ok(),
        _ => IpNet::new(address, bits).ok(),
    }
}

/// The result of a search in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowlistMatch {
    Yes,
    /// The host is listed, but not with this port.
    OtherPorts,
    Nothing,
}

pub fn of_name(list: &[AllowlistEntry], host: &str, port: Option<u16>) -> AllowlistMatch {
    listing(list.iter().filter(|allowed| allowed.has_name(host)), port)
}

pub fn of_address(list: &[AllowlistEntry], address: IpAddr, port: Option<u16>) -> AllowlistMatch {
    listing(list.iter().filter(|allowed| allowed.holds(address)), port)
}

fn listing<'a>(matches: impl Iterator<Item = &'a AllowlistEntry>, port: Option<u16>) -> AllowlistMatch {
    let mut listing = AllowlistMatch::Nothing;
    for allowed in matches {
        if allowed.port.is_none() || allowed.port == port {
            return AllowlistMatch::Yes;
        }
        listing = AllowlistMatch::OtherPorts;
    }
    listing
}

/// Returns a list with static lifetime, so that [`crate::support::net::egress::EgressScope`] is `Copy`. Equal lists share one allocation.
pub fn interned(list: Vec<AllowlistEntry>) -> &'static [AllowlistEntry] {
    static KEPT: Mutex<Vec<&'static [AllowlistEntry]>> = Mutex::new(Vec::new());
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter().find(|known| ***known == list[..]) {
        Some(known) => known,
        None => {
            let list: &'static [AllowlistEntry] = Box::leak(list.into_boxed_slice());
            all.push(list);
            list
        }
    }
}

/// Splits off the port. `None` if it is not valid.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    // An IPv6 address without brackets contains colons that precede no port.
    let has_port = text.matches(':').count() == 1 || (text.starts_with('[') && text.rfind(':') > text.rfind(']'));
    match text.rsplit_once(':').filter(|_| has_port) {
        Some((host, port)) => Some((host, Some(port.parse().ok().filter(|port| *port > 0)?))),
        None => Some((text, None)),
    }
}

fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty() && label.len() <= 63 && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let name = text.trim_end_matches('.');
    // A name without letters is a malformed address.
    name.len() <= 253 && name.split('.').all(is_label) && name.bytes().any(|b| b.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("10.0.0.0/8", "10.255.0.1", 80, AllowlistMatch::Yes)]
    #[case("10.0.0.0/8", "11.0.0.1", 80, AllowlistMatch::Nothing)]
    #[case("10.0.0.0/8", "::ffff:10.1.2.3", 80, AllowlistMatch::Yes)]
    #[case("[::ffff:10.0.0.0]/104", "10.9.9.9", 80, AllowlistMatch::Yes)]
    #[case("::ffff:10.1.2.3/128", "10.1.2.3", 80, AllowlistMatch::Yes)]
    #[case("10.1.2.3", "10.1.2.3", 80, AllowlistMatch::Yes)]
    #[case("10.1.2.3", "10.1.2.4", 80, AllowlistMatch::Nothing)]
    #[case("10.1.2.3:11434", "10.1.2.3", 11_434, AllowlistMatch::Yes)]
    #[case("10.1.2.3:11434", "10.1.2.3", 80, AllowlistMatch::OtherPorts)]
    #[case("10.0.0.0/8:443", "10.9.9.9", 443, AllowlistMatch::Yes)]
    #[case("0.0.0.0/0", "192.168.0.1", 1, AllowlistMatch::Yes)]
    #[case("0.0.0.0/0", "fd00::1", 1, AllowlistMatch::Nothing)]
    #[case("fd00::/8", "fdff::1", 1, AllowlistMatch::Yes)]
    #[case("[fd00::]/8:8080", "fd12::1", 8_080, AllowlistMatch::Yes)]
    #[case("[fd00::1]:8080", "fd00::1", 80, AllowlistMatch::OtherPorts)]
    #[case("::/0", "fe00::1", 1, AllowlistMatch::Yes)]
    fn networks_hold_addresses(#[case] entry: &str, #[case] address: &str, #[case] port: u16, #[case] said: AllowlistMatch) {
        let list = [AllowlistEntry::parse(entry).unwrap()];
        assert_eq!(of_address(&list, address.parse().unwrap(), Some(port)), said);
        assert_eq!(of_name(&list, address, Some(port)), AllowlistMatch::Nothing);
    }

    #[test]
    fn hosts_are_known_by_their_whole_names() {
        let list = ["Ollama.lan:11434", "db.internal", "localhost"].map(|entry| AllowlistEntry::parse(entry).unwrap());
        for (host, port, said) in [
            ("ollama.lan", 11_434, AllowlistMatch::Yes),
            ("OLLAMA.LAN.", 11_434, AllowlistMatch::Yes),
            ("ollama.lan", 22, AllowlistMatch::OtherPorts),
            ("db.internal", 22, AllowlistMatch::Yes),
            ("my.db.internal", 22, AllowlistMatch::Nothing),
            ("b.internal", 22, AllowlistMatch::Nothing),
            ("localhost", 80, AllowlistMatch::Yes),
        ] {
            assert_eq!(of_name(&list, host, Some(port)), said, "{host}:{port}");
        }
    }

    #[rstest]
    #[case("")]
    #[case("10.0.0.0/33")]
    #[case("10.0.0.256")]
    #[case("[::ffff:10.0.0.0]/8")]
    #[case("10.0.0.1:0")]
    #[case("10.0.0.1:http")]
    #[case("http://ollama.lan")]
    #[case("*.lan")]
    #[case("ollama.lan/24")]
    #[case("a b")]
    #[case("fd00::/129")]
    #[case("[fd00::1]:99999")]
    fn invalid_allowlist_entry_is_refused(#[case] entry: &str) {
        assert!(AllowlistEntry::parse(entry).unwrap_err().contains("is no host"), "{entry}");
    }

    #[test]
    fn a_list_is_kept_once() {
        let list = || vec![AllowlistEntry::parse("a.lan").unwrap()];
        assert!(std::ptr::eq(interned(list()), interned(list())));
    }
}
