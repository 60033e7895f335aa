//! `capstan healthcheck`: checks whether the server of this configuration is ready. Container images have no curl.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

use crate::app::commands::output::print;
use crate::app::config::Loaded;

/// Exits with 0 if the server reports within two seconds that it is ready.
pub async fn run(loaded: &Loaded) -> anyhow::Result<ExitCode> {
    let url = format!("http://{}/readyz", reachable(loaded.config.server.listen));
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
    let answer = client.get(&url).send().await.with_context(|| format!("no answer from {url}"))?;
    let code = if answer.status().is_success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    print(&format!("{url}: {}\n", answer.status()))?;
    Ok(code)
}

/// Returns the address for clients. The wildcard address is reachable at loopback.
pub fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}
