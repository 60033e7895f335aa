//! Egress policy: the destinations that this process may connect to on behalf of a user (SSRF guard).
//!
//! A URL of a member must not lead into the operator's network. The resolver checks addresses when it connects, because a name that was
//! checked earlier may resolve to another address by then.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{ClientBuilder, Url};

use crate::support::net::egress_allowlist::{self, AllowlistEntry, AllowlistMatch};

/// The allowed destinations of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EgressScope {
    /// All destinations, this machine included, except metadata services of clouds. For URLs of administrators.
    Anywhere,
    /// Public addresses, by https only.
    Public,
    /// Public addresses by https, and destinations on the operator's allowlist.
    Listed(&'static [AllowlistEntry]),
}

impl EgressScope {
    /// Returns the value of the database column.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Anywhere => "anywhere",
            // The database does not store the allowlist: it always comes from the current settings.
            Self::Public | Self::Listed(_) => "public",
        }
    }

    pub fn from_name(word: &str) -> Option<Self> {
        [Self::Anywhere, Self::Public].into_iter().find(|egress| egress.as_str() == word)
    }
}

/// Why a connection is refused. Does not reveal the address that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EgressDenied {
    #[error("only https URLs are allowed here; an administrator may use others, or allow them for all with outbound.allow")]
    Scheme,
    /// Text before `@` can disguise the real host, and a password in the URL would be logged.
    #[error("a URL with a user or a password in it is not allowed here")]
    Login,
    #[error("the address is not public; an administrator may use it, or allow it for all users with outbound.allow")]
    Address,
    #[error("the address is link-local, or belongs to a cloud's metadata service; connections to these are never allowed")]
    Metadata,
}

/// Checks a URL without resolving its host.
pub fn check(url: &Url, egress: EgressScope) -> Result<(), EgressDenied> {
    // The parser has normalised every form of an IPv4 address.
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let address = host.parse::<IpAddr>();
    match egress {
        EgressScope::Anywhere if address.as_ref().is_ok_and(|address| is_metadata_service(*address)) => {
            return Err(EgressDenied::Metadata);
        }
        EgressScope::Anywhere => return Ok(()),
        EgressScope::Listed(list) => match match_in_list(url, host, address.as_ref().ok(), list)? {
            AllowlistMatch::Yes => return Ok(()),
            AllowlistMatch::OtherPorts => return Err(EgressDenied::Address),
            AllowlistMatch::Nothing => {}
        },
        EgressScope::Public => {}
    }
    if url.scheme() != "https" {
        return Err(EgressDenied::Scheme);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EgressDenied::Login);
    }
    let is_public = match address {
        Ok(address) => is_public(address),
        Err(_) => !is_local_name(host),
    };
    if is_public { Ok(()) } else { Err(EgressDenied::Address) }
}

/// Searches the list for the host of a URL.
fn match_in_list(url: &Url, host: &str, address: Option<&IpAddr>, list: &[AllowlistEntry]) -> Result<AllowlistMatch, EgressDenied> {
    let port = url.port_or_known_default();
    match address {
        Some(address) if is_metadata_service(*address) => Err(EgressDenied::Metadata),
        Some(address) => Ok(egress_allowlist::of_address(list, *address, port)),
        None => Ok(egress_allowlist::of_name(list, host, port)),
    }
}

/// Returns whether the list allows a name with this address. The port of a listed name was checked with the URL. A listed address counts
/// only without a port, because the resolver does not know the port.
fn is_listed(name: &str, address: IpAddr, list: &[AllowlistEntry]) -> bool {
    egress_allowlist::of_name(list, name, None) != AllowlistMatch::Nothing
        || egress_allowlist::of_address(list, address, None) == AllowlistMatch::Yes
}

/// Returns whether a URL leads to this machine or its network. It does so by a private address, a local name such as `x.local`, or
/// a name without a dot.
pub fn is_local(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
    address.map_or_else(|| !host.contains('.') || is_local_name(host), |address| !is_public(address))
}

fn is_local_name(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host.is_empty() || host == "localhost" || [".localhost", ".local", ".internal"].iter().any(|end| host.ends_with(end))
}

/// Prepares a client that connects only to allowed destinations. Each request's URL must also pass [`check`], because an IP address
/// in it is not resolved. Except for [`EgressScope::Anywhere`], proxies are off, because they would resolve names themselves.
pub fn with_egress_check(builder: ClientBuilder, egress: EgressScope) -> ClientBuilder {
    resolved_by(builder, egress, Arc::new(of_system))
}

fn resolved_by(builder: ClientBuilder, egress: EgressScope, lookup: Lookup) -> ClientBuilder {
    let judged = Arc::new(FilteringResolver { egress, lookup });
    match egress {
        EgressScope::Anywhere => builder.dns_resolver(judged),
        EgressScope::Public | EgressScope::Listed(_) => builder.no_proxy().dns_resolver(judged),
    }
}

/// A function that resolves a name.
type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> + Send + Sync>;

fn of_system(name: String) -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
    Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
}

/// A resolver that fails for names with forbidden addresses. The client connects to the addresses that it returns, without another lookup.
struct FilteringResolver {
    egress: EgressScope,
    lookup: Lookup,
}

impl Resolve for FilteringResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (egress, found) = (self.egress, (self.lookup)(name.as_str().to_owned()));
        Box::pin(async move {
            let found = found.await?;
            // One forbidden address among others is a mistake or an attack, so the lookup fails.
            match egress {
                EgressScope::Anywhere | EgressScope::Listed(_) if found.iter().any(|address| is_metadata_service(address.ip())) => {
                    return Err(EgressDenied::Metadata.into());
                }
                EgressScope::Public if found.iter().any(|address| !is_public(address.ip())) => {
                    return Err(EgressDenied::Address.into());
                }
                EgressScope::Listed(list)
                    if found.iter().any(|address| !is_public(address.ip()) && !is_listed(name.as_str(), address.ip(), list)) =>
                {
                    return Err(EgressDenied::Address.into());
                }
                EgressScope::Anywhere | EgressScope::Public | EgressScope::Listed(_) => {}
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Returns whether an address is link-local, or belongs to a cloud's metadata service, which gives credentials to local clients.
fn is_metadata_service(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            let of_clouds = [[100, 100, 100, 200], [168, 63, 129, 16], [192, 0, 0, 192]];
            address.is_link_local() || of_clouds.contains(&address.octets())
        }
        IpAddr::V6(address) => {
            // The prefix of Amazon, which has several services, and the addresses of Google and Scaleway.
            let is_of_clouds =
                matches!(address.segments(), [0xfd00, 0xec2, ..] | [0xfd20, 0xce, .., 0x254] | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]);
            is_of_clouds
                || address.is_unicast_link_local()
                || embedded_ipv4(address).into_iter().any(|address| is_metadata_service(address.into()))
        }
    }
}

/// Returns the IPv4 addresses that an IPv6 address may lead to through a translator or tunnel. Such an address is never public, so the
/// result matters only for [`EgressScope::Anywhere`] and listed networks.
fn embedded_ipv4(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let [_, _, c, d, e, f, g, h, _, j, k, l, m, n, o, p] = address.octets();
    let found = match address.segments() {
        // Translators (RFC 6052 and 2765), and the deprecated IPv4-compatible addresses. The prefix also matches `::` and `::1`; their IPv4
        // addresses 0.0.0.0 and 0.0.0.1 match no check.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0, 0, 0, 0, 0, 0, ..] => vec![[m, n, o, p]],
        // Local translators (RFC 8215). Their prefix length is unknown, so all address positions of RFC 6052 are tried.
        [0x64, 0xff9b, 1, ..] => vec![[m, n, o, p], [g, h, j, k], [h, j, k, l], [j, k, l, m]],
        // 6to4.
        [0x2002, ..] => vec![[c, d, e, f]],
        _ => Vec::new(),
    };
    found.into_iter().map(Ipv4Addr::from).collect()
}

/// Returns whether an address is in no special range of <https://www.iana.org/assignments/iana-ipv4-special-registry>.
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        (0 | 10 | 127 | 224..=255, _, _)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
    );
    !is_special
}

/// Returns whether an address is public. Only 2000::/3 is allocated (<https://www.iana.org/assignments/ipv6-address-space>), with
/// special ranges in it. Addresses of tunnels are not public, because they may lead to any IPv4 address.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let is_special = match a {
        // Protocol assignments (Teredo among them) and documentation.
        0x2001 => b < 0x0200 || b == 0x0db8,
        // 6to4, and documentation.
        0x2002 => true,
        0x3fff => b < 0x1000,
        _ => false,
    };
    (a & 0xe000) == 0x2000 && !is_special
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn checked(url: &str) -> Result<(), EgressDenied> {
        check(&Url::parse(url).unwrap(), EgressScope::Public)
    }

    /// M-25.
    #[test]
    fn private_address_is_found_in_every_spelling() {
        for url in [
            "https://127.0.0.1/v1",
            "https://127.1",
            "https://2130706433",
            "https://0x7f000001",
            "https://0177.0.0.1",
            "https://0",
            "https://0.0.0.0:443",
            "https://[::1]",
            "https://[::]",
            "https://[::ffff:127.0.0.1]",
            "https://[::ffff:a00:1]",
            "https://[::127.0.0.1]",
            "https://[64:ff9b::a9fe:a9fe]",
            "https://[2002:7f00:1::]",
            "https://[fe80::1]",
            "https://[fd00::1]",
            "https://[fec0::1]",
            "https://[ff02::1]",
            "https://[2001:db8::1]",
            "https://[2001::1]",
            "https://169.254.169.254/latest/meta-data",
            "https://100.100.100.200",
            "https://10.1.2.3",
            "https://172.31.0.1",
            "https://192.168.0.1",
            "https://198.18.0.1",
            "https://224.0.0.1",
            "https://255.255.255.255",
            "https://localhost",
            "https://LOCALHOST.",
            "https://a.localhost",
            "https://metadata.google.internal",
        ] {
            assert_eq!(checked(url), Err(EgressDenied::Address), "{url}");
        }
        for url in ["https://8.8.8.8", "https://172.32.0.1", "https://[2606:4700::1111]", "https://api.openai.com/v1"] {
            assert_eq!(checked(url), Ok(()), "{url}");
        }
        for url in ["http://8.8.8.8", "http://api.openai.com", "ftp://api.openai.com"] {
            assert_eq!(checked(url), Err(EgressDenied::Scheme), "{url}");
        }
        for url in ["https://user@8.8.8.8", "https://:word@example.com", "https://api.openai.com@192.168.0.1"] {
            assert_eq!(checked(url), Err(EgressDenied::Login), "{url}");
        }
        for url in [
            "http://127.0.0.1:11434",
            "http://10.0.0.5",
            "https://[fd00::1]",
            "http://db.internal",
            "http://[::1]:11434",
            "http://[::]",
            "http://[64:ff9b:1::a00:5]",
            "http://[2002:a00:5::]",
        ] {
            assert_eq!(check(&Url::parse(url).unwrap(), EgressScope::Anywhere), Ok(()), "{url}");
        }
    }

    /// M-25.
    #[test]
    fn credentials_of_the_machine_are_nobodys() {
        for url in [
            "http://169.254.169.254/latest/meta-data",
            "http://0xa9fea9fe",
            "http://169.254.170.2",
            "http://100.100.100.200",
            "http://168.63.129.16",
            "http://[::ffff:169.254.169.254]",
            "http://[64:ff9b::a9fe:a9fe]",
            "http://[64:ff9b:1::a9fe:a9fe]",
            "http://[64:ff9b:1:a9fe:a9:fe00::]",
            "http://[64:ff9b:1:42a9:fe:a9fe::]",
            "http://[64:ff9b:1:42:a9:fea9:fe00:0]",
            "http://[2002:a9fe:a9fe::]",
            "http://[2002:6464:64c8::1]",
            "http://[::169.254.169.254]",
            "http://[::ffff:0:169.254.169.254]",
            "http://[fe80::1]",
            "http://[fd00:ec2::254]",
            "http://[fd00:ec2::23]/v1/credentials",
            "http://[fd00:ec2:1::1]",
            "http://[fd20:ce::254]",
            "http://[fd00:42::42]/user_data",
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(check(&url, EgressScope::Anywhere), Err(EgressDenied::Metadata), "{url}");
            assert!(check(&url, EgressScope::Public).is_err(), "{url}");
        }
    }

    fn of_list(entries: &[&str]) -> EgressScope {
        EgressScope::Listed(egress_allowlist::interned(entries.iter().map(|entry| AllowlistEntry::parse(entry).unwrap()).collect()))
    }

    /// M-25.
    #[test]
    fn only_listed_hosts_are_reachable() {
        let egress =
            of_list(&["10.0.0.0/8:11434", "192.168.1.5", "ollama.lan:11434", "db.internal", "169.254.169.254", "8.8.8.8:1"]);
        for (url, expected) in [
            ("http://10.1.2.3:11434/v1", Ok(())),
            ("http://10.1.2.3/v1", Err(EgressDenied::Address)),
            ("https://10.1.2.3/v1", Err(EgressDenied::Address)),
            ("http://192.168.1.5:8080", Ok(())),
            ("http://192.168.1.6:8080", Err(EgressDenied::Scheme)),
            ("https://192.168.1.6:8080", Err(EgressDenied::Address)),
            ("http://ollama.lan:11434", Ok(())),
            ("https://ollama.lan:22", Err(EgressDenied::Address)),
            ("http://db.internal", Ok(())),
            ("https://other.internal", Err(EgressDenied::Address)),
            ("https://localhost", Err(EgressDenied::Address)),
            ("http://169.254.169.254/latest", Err(EgressDenied::Metadata)),
            ("https://8.8.8.8", Err(EgressDenied::Address)),
            ("https://api.openai.com", Ok(())),
            ("http://api.openai.com", Err(EgressDenied::Scheme)),
        ] {
            assert_eq!(check(&Url::parse(url).unwrap(), egress), expected, "{url}");
        }
    }

    /// M-25.
    #[tokio::test]
    async fn a_listed_name_may_lead_home() {
        for (entries, is_reached) in [
            (["localhost:80"].as_slice(), true),
            (&["127.0.0.0/8", "::1"], true),
            (&["127.0.0.0/8:80", "[::1]:80"], false),
            (&["other.lan"], false),
        ] {
            let found = FilteringResolver { egress: of_list(entries), lookup: Arc::new(of_system) }
                .resolve("localhost".parse().unwrap())
                .await;
            assert_eq!(found.is_ok(), is_reached, "{entries:?}");
        }
    }

    /// M-25.
    #[tokio::test]
    async fn a_name_is_judged_by_its_addresses_when_it_is_connected_to() {
        // A name that does not look local but resolves to this machine on every system.
        let found = FilteringResolver { egress: EgressScope::Public, lookup: Arc::new(of_system) }
            .resolve("localhost".parse().unwrap())
            .await;
        assert!(found.is_err_and(|error| error.to_string().contains("not public")));
        let client = with_egress_check(reqwest::Client::builder(), EgressScope::Public).build().unwrap();
        let error = client.get("https://localhost:9/").send().await.unwrap_err();
        let mut words = String::new();
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(error) = cause {
            words.push_str(&error.to_string());
            cause = error.source();
        }
        assert!(words.contains("not public"), "{words}");
    }

    /// Returns the next of these address lists at each lookup, repeats the last one, and counts the lookups.
    fn scripted(answers: &'static [&'static [&'static str]]) -> (Lookup, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let lookup = move |_: String| -> BoxFuture<'static, std::io::Result<Vec<SocketAddr>>> {
            let at = count.fetch_add(1, Ordering::SeqCst).min(answers.len() - 1);
            let found = answers[at].iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0)).collect();
            Box::pin(std::future::ready(Ok(found)))
        };
        (Arc::new(lookup), asked)
    }

    /// S-13: a name with a public and another address is not connected to at all.
    #[tokio::test]
    async fn host_with_one_private_address_is_refused() {
        let answers: [&'static [&'static [&'static str]]; 5] = [
            &[&["8.8.8.8", "10.0.0.1"]],
            &[&["10.0.0.1", "8.8.8.8"]],
            &[&["2606:4700::1111", "::1"]],
            &[&["8.8.8.8", "::ffff:169.254.169.254"]],
            &[&["8.8.8.8", "64:ff9b::a00:1"]],
        ];
        for answers in answers {
            let judged = FilteringResolver { egress: EgressScope::Public, lookup: scripted(answers).0 };
            let found = judged.resolve("two.example".parse().unwrap()).await;
            assert!(found.is_err_and(|error| error.to_string().contains("not public")), "{answers:?}");
        }
        let judged = FilteringResolver { egress: EgressScope::Public, lookup: scripted(&[&["8.8.8.8", "2606:4700::1111"]]).0 };
        let found = judged.resolve("two.example".parse().unwrap()).await;
        assert_eq!(found.map(|found| found.count()).unwrap_or_default(), 2);
    }

    /// S-13: the connection uses the checked address without a second lookup, and the next connection is checked again.
    #[tokio::test]
    async fn a_name_that_changes_is_connected_to_where_it_was_judged() {
        let allowed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = allowed.local_addr().unwrap().port();
        // The same port of another address, which is not on the allowlist.
        let other = tokio::net::TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let app = axum::Router::new().route("/", axum::routing::get(async || "here"));
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move { axum::serve(allowed, app).await.unwrap() });
        let (lookup, asked) = scripted(&[&["127.0.0.1"], &["127.0.0.2"]]);
        let builder = reqwest::Client::builder().pool_max_idle_per_host(0);
        let client = resolved_by(builder, of_list(&["127.0.0.1"]), lookup).build().unwrap();
        let url = format!("http://rebinds.example:{port}/");
        let answer = client.get(&url).send().await.unwrap();
        assert_eq!(answer.remote_addr().map(|address| address.ip().to_string()).as_deref(), Some("127.0.0.1"));
        assert_eq!((answer.text().await.unwrap().as_str(), asked.load(Ordering::SeqCst)), ("here", 1));
        let error = client.get(&url).send().await.unwrap_err();
        assert!(format!("{error:?}").contains("Address"), "{error:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        let reached = std::future::poll_fn(|context| std::task::Poll::Ready(other.poll_accept(context).is_ready())).await;
        assert!(!reached, "nobody has connected to what was not judged");
    }
}
