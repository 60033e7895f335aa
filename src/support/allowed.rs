//! Places that an operator has named, to which URLs of members may lead though they are not public.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// One of them: a host by its name, or addresses, each with a port if only that one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    what: What,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// In lower case.
    Name(String),
    Net {
        address: IpAddr,
        bits: u8,
    },
}

impl Allowed {
    /// Reads `host`, `10.0.0.5`, `10.0.0.0/8` or `fd00::/8`, and the same with `:PORT`, where IPv6 stands in brackets.
    ///
    /// # Errors
    /// In words: what is wrong with it.
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
            (Ok(address), bits) => {
                let most = if address.is_ipv4() { 32 } else { 128 };
                let bits =
                    bits.map_or(Some(most), |bits| bits.parse::<u8>().ok()).filter(|bits| *bits <= most).ok_or_else(wrong)?;
                Ok(Self { what: What::Net { address, bits }, port })
            }
            (Err(_), None) if is_name(place) => {
                Ok(Self { what: What::Name(place.trim_end_matches('.').to_ascii_lowercase()), port })
            }
            (Err(_), _) => Err(wrong()),
        }
    }

    fn is_of_port(&self, port: Option<u16>) -> bool {
        self.port.is_none() || self.port == port
    }

    fn has_name(&self, host: &str) -> bool {
        matches!(&self.what, What::Name(name) if name.eq_ignore_ascii_case(host.trim_end_matches('.')))
    }

    fn holds(&self, address: IpAddr) -> bool {
        match &self.what {
            What::Name(_) => false,
            What::Net { address: net, bits } => is_within(address.to_canonical(), *net, *bits),
        }
    }
}

/// What a list says of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// It is on the list.
    Yes,
    /// It is there with other ports only.
    OtherPorts,
    /// Nothing.
    Nothing,
}

/// What is said of a host by its name.
#[must_use]
pub fn of_name(list: &[Allowed], host: &str, port: Option<u16>) -> Said {
    said(list.iter().filter(|allowed| allowed.has_name(host)), port)
}

/// What is said of an address.
#[must_use]
pub fn of_address(list: &[Allowed], address: IpAddr, port: Option<u16>) -> Said {
    said(list.iter().filter(|allowed| allowed.holds(address)), port)
}

fn said<'a>(those: impl Iterator<Item = &'a Allowed>, port: Option<u16>) -> Said {
    let mut said = Said::Nothing;
    for allowed in those {
        match allowed.is_of_port(port) {
            true => return Said::Yes,
            false => said = Said::OtherPorts,
        }
    }
    said
}

/// Keeps a list for as long as there is this process, once: what is handed on everywhere should be small.
#[must_use]
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

/// The place, and the port behind it. `None` if the port is none.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    // An IPv6 address has colons of its own, unless it stands in brackets.
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
    // One of digits alone is an address that is written wrongly.
    name.len() <= 253 && name.split('.').all(is_label) && name.bytes().any(|b| b.is_ascii_alphabetic())
}

fn is_within(address: IpAddr, net: IpAddr, bits: u8) -> bool {
    let (address, net, width) = match (address, net.to_canonical()) {
        (IpAddr::V4(address), IpAddr::V4(net)) => (u128::from(address.to_bits()), u128::from(net.to_bits()), 32),
        (IpAddr::V6(address), IpAddr::V6(net)) => (address.to_bits(), net.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    let apart = address ^ net;
    // Nothing may be left of where they differ within the first bits.
    apart.checked_shr(width - u32::from(bits).min(width)).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("10.0.0.0/8", "10.255.0.1", 80, Said::Yes)]
    #[case("10.0.0.0/8", "11.0.0.1", 80, Said::Nothing)]
    #[case("10.0.0.0/8", "::ffff:10.1.2.3", 80, Said::Yes)]
    #[case("10.1.2.3", "10.1.2.3", 80, Said::Yes)]
    #[case("10.1.2.3", "10.1.2.4", 80, Said::Nothing)]
    #[case("10.1.2.3:11434", "10.1.2.3", 11_434, Said::Yes)]
    #[case("10.1.2.3:11434", "10.1.2.3", 80, Said::OtherPorts)]
    #[case("10.0.0.0/8:443", "10.9.9.9", 443, Said::Yes)]
    #[case("0.0.0.0/0", "192.168.0.1", 1, Said::Yes)]
    #[case("0.0.0.0/0", "fd00::1", 1, Said::Nothing)]
    #[case("fd00::/8", "fdff::1", 1, Said::Yes)]
    #[case("[fd00::]/8:8080", "fd12::1", 8_080, Said::Yes)]
    #[case("[fd00::1]:8080", "fd00::1", 80, Said::OtherPorts)]
    #[case("::/0", "fe00::1", 1, Said::Yes)]
    fn networks_hold_addresses(#[case] entry: &str, #[case] address: &str, #[case] port: u16, #[case] said: Said) {
        let list = [Allowed::parse(entry).unwrap()];
        assert_eq!(of_address(&list, address.parse().unwrap(), Some(port)), said);
        assert_eq!(of_name(&list, address, Some(port)), Said::Nothing);
    }

    #[test]
    fn hosts_are_known_by_their_whole_names() {
        let list = ["Ollama.lan:11434", "db.internal", "localhost"].map(|entry| Allowed::parse(entry).unwrap());
        for (host, port, said) in [
            ("ollama.lan", 11_434, Said::Yes),
            ("OLLAMA.LAN.", 11_434, Said::Yes),
            ("ollama.lan", 22, Said::OtherPorts),
            ("db.internal", 22, Said::Yes),
            ("my.db.internal", 22, Said::Nothing),
            ("b.internal", 22, Said::Nothing),
            ("localhost", 80, Said::Yes),
        ] {
            assert_eq!(of_name(&list, host, Some(port)), said, "{host}:{port}");
        }
    }

    #[rstest]
    #[case("")]
    #[case("10.0.0.0/33")]
    #[case("10.0.0.256")]
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
