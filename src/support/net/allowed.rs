//! The operator's allowlist: destinations that URLs of members may lead to although they are not public.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use ipnet::IpNet;

/// A host or network, with a port if only that one is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    what: What,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// In lower case.
    Name(String),
    Net(IpNet),
}

impl Allowed {
    /// Reads `host`, `10.0.0.5`, `10.0.0.0/8` or `fd00::/8`, each also with `:PORT`, where IPv6 stands in brackets.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no host, address or network: write ollama.lan, 10.0.0.5, 10.0.0.0/8 or [fd00::]/8, with :PORT if only that one counts"
            )
        };
        let (place, port) = split_port(text).ok_or_else(wrong)?;
        let (address, bits) = match place.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (place, None),
        };
        let address = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
        match (address.parse::<IpAddr>(), bits) {
            (Ok(address), None) => Ok(Self { what: What::Net(address.to_canonical().into()), port }),
            (Ok(address), Some(bits)) => {
                let net = bits.parse().ok().and_then(|bits| network(address, bits));
                Ok(Self { what: What::Net(net.ok_or_else(wrong)?), port })
            }
            (Err(_), None) if is_name(place) => {
                Ok(Self { what: What::Name(place.trim_end_matches('.').to_ascii_lowercase()), port })
            }
            (Err(_), _) => Err(wrong()),
        }
    }

    fn has_name(&self, host: &str) -> bool {
        matches!(&self.what, What::Name(name) if name.eq_ignore_ascii_case(host.trim_end_matches('.')))
    }

    fn holds(&self, address: IpAddr) -> bool {
        match &self.what {
            What::Name(_) => false,
            What::Net(net) => net.contains(&address.to_canonical()),
        }
    }
}

/// Returns a network. An IPv4 network in its IPv6 form becomes IPv4, as addresses do before they are compared.
fn network(address: IpAddr, bits: u8) -> Option<IpNet> {
    match address.to_canonical() {
        // A shorter prefix would hold addresses that are not IPv4.
        canonical if canonical != address => IpNet::new(canonical, bits.checked_sub(96)?).ok(),
        _ => IpNet::new(address, bits).ok(),
    }
}

/// The result of a search in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    Yes,
    /// The host is listed with other ports only.
    OtherPorts,
    Nothing,
}

pub fn of_name(list: &[Allowed], host: &str, port: Option<u16>) -> Listing {
    listing(list.iter().filter(|allowed| allowed.has_name(host)), port)
}

pub fn of_address(list: &[Allowed], address: IpAddr, port: Option<u16>) -> Listing {
    listing(list.iter().filter(|allowed| allowed.holds(address)), port)
}

fn listing<'a>(matches: impl Iterator<Item = &'a Allowed>, port: Option<u16>) -> Listing {
    let mut listing = Listing::Nothing;
    for allowed in matches {
        if allowed.port.is_none() || allowed.port == port {
            return Listing::Yes;
        }
        listing = Listing::OtherPorts;
    }
    listing
}

/// Returns a list with static lifetime, so that [`crate::support::net::outbound::Reach`] is `Copy`. Equal lists are stored once.
pub fn kept(list: Vec<Allowed>) -> &'static [Allowed] {
    static KEPT: Mutex<Vec<&'static [Allowed]>> = Mutex::new(Vec::new());
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter().find(|known| ***known == list[..]) {
        Some(known) => known,
        None => {
            let list: &'static [Allowed] = Box::leak(list.into_boxed_slice());
            all.push(list);
            list
        }
    }
}

/// Splits off the port. `None` if it is not valid.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    // An IPv6 address without brackets has colons of its own.
    let has_port = text.matches(':').count() == 1 || (text.starts_with('[') && text.rfind(':') > text.rfind(']'));
    match text.rsplit_once(':').filter(|_| has_port) {
        Some((place, port)) => Some((place, Some(port.parse().ok().filter(|port| *port > 0)?))),
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
    #[case("10.0.0.0/8", "10.255.0.1", 80, Listing::Yes)]
    #[case("10.0.0.0/8", "11.0.0.1", 80, Listing::Nothing)]
    #[case("10.0.0.0/8", "::ffff:10.1.2.3", 80, Listing::Yes)]
    #[case("[::ffff:10.0.0.0]/104", "10.9.9.9", 80, Listing::Yes)]
    #[case("::ffff:10.1.2.3/128", "10.1.2.3", 80, Listing::Yes)]
    #[case("10.1.2.3", "10.1.2.3", 80, Listing::Yes)]
    #[case("10.1.2.3", "10.1.2.4", 80, Listing::Nothing)]
    #[case("10.1.2.3:11434", "10.1.2.3", 11_434, Listing::Yes)]
    #[case("10.1.2.3:11434", "10.1.2.3", 80, Listing::OtherPorts)]
    #[case("10.0.0.0/8:443", "10.9.9.9", 443, Listing::Yes)]
    #[case("0.0.0.0/0", "192.168.0.1", 1, Listing::Yes)]
    #[case("0.0.0.0/0", "fd00::1", 1, Listing::Nothing)]
    #[case("fd00::/8", "fdff::1", 1, Listing::Yes)]
    #[case("[fd00::]/8:8080", "fd12::1", 8_080, Listing::Yes)]
    #[case("[fd00::1]:8080", "fd00::1", 80, Listing::OtherPorts)]
    #[case("::/0", "fe00::1", 1, Listing::Yes)]
    fn networks_hold_addresses(#[case] entry: &str, #[case] address: &str, #[case] port: u16, #[case] said: Listing) {
        let list = [Allowed::parse(entry).unwrap()];
        assert_eq!(of_address(&list, address.parse().unwrap(), Some(port)), said);
        assert_eq!(of_name(&list, address, Some(port)), Listing::Nothing);
    }

    #[test]
    fn hosts_are_known_by_their_whole_names() {
        let list = ["Ollama.lan:11434", "db.internal", "localhost"].map(|entry| Allowed::parse(entry).unwrap());
        for (host, port, said) in [
            ("ollama.lan", 11_434, Listing::Yes),
            ("OLLAMA.LAN.", 11_434, Listing::Yes),
            ("ollama.lan", 22, Listing::OtherPorts),
            ("db.internal", 22, Listing::Yes),
            ("my.db.internal", 22, Listing::Nothing),
            ("b.internal", 22, Listing::Nothing),
            ("localhost", 80, Listing::Yes),
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
    fn what_is_no_place_is_refused(#[case] entry: &str) {
        assert!(Allowed::parse(entry).unwrap_err().contains("is no host"), "{entry}");
    }

    #[test]
    fn a_list_is_kept_once() {
        let list = || vec![Allowed::parse("a.lan").unwrap()];
        assert!(std::ptr::eq(kept(list()), kept(list())));
    }
}
