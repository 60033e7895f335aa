//! Discovers the authorization server of an MCP server, and its metadata. Both servers must name the same issuer.

use reqwest::Url;
use serde_json::{Map, Value};

use super::requests::Wire;

const MAX_TEXT: usize = 2_048;
const MAX_SCOPES: usize = 100;

#[derive(Debug)]
pub struct ServerMetadata {
    pub resource: String,
    pub issuer: String,
    /// The authorization endpoint.
    pub authorize: Url,
    /// The token endpoint.
    pub token: Url,
    /// The registration endpoint.
    pub registration: Option<Url>,
    /// The scopes that the MCP server requests.
    pub scopes: Vec<String>,
    /// Whether the authorization server supports OpenID's scope `offline_access`.
    pub knows_offline_access: bool,
    /// Whether it adds its issuer to the callback (RFC 9207).
    pub names_itself: bool,
    /// The supported methods of client authentication.
    pub client_proofs: Option<Vec<String>>,
}

/// The resource metadata of the server.
struct ProtectedResourceMetadata {
    resource: String,
    issuer: String,
    scopes: Vec<String>,
}

/// Collects the metadata for a login, or returns why a login is not possible.
pub async fn discover(wire: &Wire) -> Result<ServerMetadata, String> {
    let challenge = wire.challenge().await?;
    let protected = protected(wire, challenge.metadata.as_deref()).await?;
    let server = authorization_server(wire, &protected.issuer).await?;
    let text = |name: &str| text(&server, name);
    let url_of =
        |name: &str| text(name).map(|url| wire.check_url(&url, &format!("{name} of the authorization server"))).transpose();
    let needed = |name: &str| url_of(name)?.ok_or_else(|| format!("the authorization server's metadata has no {name}"));
    let methods = texts(&server, "code_challenge_methods_supported").unwrap_or_default();
    if !methods.iter().any(|method| method == "S256") {
        return Err("the authorization server does not declare PKCE with S256, without which a login can be stolen".to_owned());
    }
    if texts(&server, "response_types_supported").is_some_and(|types| !types.iter().any(|kind| kind == "code")) {
        return Err("the authorization server does not support the response type `code`".to_owned());
    }
    let scopes = match challenge.scope {
        Some(scope) => scope.split_whitespace().take(MAX_SCOPES).map(str::to_owned).collect(),
        None => protected.scopes,
    };
    let known_scopes = texts(&server, "scopes_supported").unwrap_or_default();
    Ok(ServerMetadata {
        authorize: needed("authorization_endpoint")?,
        token: needed("token_endpoint")?,
        registration: url_of("registration_endpoint")?,
        scopes,
        knows_offline_access: known_scopes.iter().any(|scope| scope == "offline_access"),
        names_itself: server.get("authorization_response_iss_parameter_supported").and_then(Value::as_bool).unwrap_or_default(),
        client_proofs: texts(&server, "token_endpoint_auth_methods_supported"),
        resource: protected.resource,
        issuer: protected.issuer,
    })
}

/// Reads the resource metadata (RFC 9728). Servers of protocol revision 2025-03-26 have none, and are their own authorization
/// servers.
async fn protected(wire: &Wire, named: Option<&str>) -> Result<ProtectedResourceMetadata, String> {
    const WHAT: &str = "resource_metadata of the server";
    let urls = match named {
        Some(named) => vec![wire.check_url(named, WHAT)?],
        None => well_known(&wire.server, "oauth-protected-resource", true),
    };
    for url in urls {
        let url = wire.check_url(url.as_str(), WHAT)?;
        let Some(document) = wire.document(&url).await? else { continue };
        let resource = text(&document, "resource").ok_or_else(|| format!("{WHAT} has no resource"))?;
        if !covers(&resource, &wire.server) {
            return Err(format!("{WHAT} belongs to another resource than {}", without_query(&wire.server)));
        }
        let issuers = texts(&document, "authorization_servers").unwrap_or_default();
        let issuer = issuers.into_iter().next().ok_or_else(|| format!("{WHAT} has no authorization server"))?;
        return Ok(ProtectedResourceMetadata {
            resource,
            issuer,
            scopes: texts(&document, "scopes_supported").unwrap_or_default(),
        });
    }
    if named.is_some() {
        return Err(format!("{WHAT} was not found"));
    }
    let issuer = wire.server.origin().ascii_serialization();
    Ok(ProtectedResourceMetadata { resource: without_query(&wire.server).into(), issuer, scopes: Vec::new() })
}

/// Reads the metadata of the authorization server, by RFC 8414 or else by OpenID Connect Discovery.
async fn authorization_server(wire: &Wire, issuer: &str) -> Result<Map<String, Value>, String> {
    let url = wire.check_url(issuer, "the authorization server that the server names")?;
    let mut urls = well_known(&url, "oauth-authorization-server", false);
    urls.extend(well_known(&url, "openid-configuration", false));
    if url.path() != "/" {
        let mut appended = url.clone();
        appended.set_path(&format!("{}/.well-known/openid-configuration", url.path().trim_end_matches('/')));
        urls.push(appended);
    }
    for url in urls {
        let Some(document) = wire.document(&url).await? else { continue };
        let named = text(&document, "issuer").unwrap_or_default();
        // A server with the issuer of another server could receive codes of that server.
        if named.trim_end_matches('/') != issuer.trim_end_matches('/') {
            return Err("the authorization server calls itself by another name than the server calls it".to_owned());
        }
        return Ok(document);
    }
    Err(format!("the authorization server {} has no metadata", without_query(&url)))
}

/// Returns the well-known URLs of a server: with its path appended, and if `at_root` also without.
fn well_known(place: &Url, name: &str, at_root: bool) -> Vec<Url> {
    let path = place.path().trim_end_matches('/');
    let mut paths = vec![format!("/.well-known/{name}{path}")];
    if at_root && !path.is_empty() {
        paths.push(format!("/.well-known/{name}"));
    }
    let url = |path: String| {
        let mut url = without_query(place);
        url.set_path(&path);
        url
    };
    paths.into_iter().map(url).collect()
}

/// Returns whether tokens for a resource are valid for this server: the resource is its URL, or a path above it.
fn covers(resource: &str, server: &Url) -> bool {
    let Ok(resource) = Url::parse(resource) else { return false };
    let above = resource.path().trim_end_matches('/');
    let below = server.path().strip_prefix(above);
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn without_query(url: &Url) -> Url {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url
}

pub fn text(document: &Map<String, Value>, name: &str) -> Option<String> {
    document.get(name)?.as_str().filter(|text| !text.is_empty() && text.len() <= MAX_TEXT).map(str::to_owned)
}

fn texts(document: &Map<String, Value>, name: &str) -> Option<Vec<String>> {
    let list = document.get(name)?.as_array()?.iter().take(MAX_SCOPES);
    Some(list.filter_map(|value| value.as_str().filter(|text| text.len() <= MAX_TEXT).map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://a.example/mcp", true)]
    #[case("https://a.example/mcp/", true)]
    #[case("https://a.example", true)]
    #[case("https://a.example:443/", true)]
    #[case("https://a.example/mc", false)]
    #[case("https://a.example/mcp/x", false)]
    #[case("https://b.example/mcp", false)]
    #[case("http://a.example/mcp", false)]
    #[case("https://a.example.evil/mcp", false)]
    #[case("a.example", false)]
    fn a_resource_is_the_server_or_above_it(#[case] resource: &str, #[case] covered: bool) {
        assert_eq!(covers(resource, &Url::parse("https://a.example/mcp").unwrap()), covered);
    }

    #[test]
    fn documents_are_looked_for_where_they_belong() {
        let shown = |url: &str, name: &str, at_root: bool| -> Vec<String> {
            well_known(&Url::parse(url).unwrap(), name, at_root).into_iter().map(Into::into).collect()
        };
        let found = shown("https://a.example/mcp/?key=x", "oauth-protected-resource", true);
        let expected = [
            "https://a.example/.well-known/oauth-protected-resource/mcp",
            "https://a.example/.well-known/oauth-protected-resource",
        ];
        assert_eq!(found, expected);
        let found = shown("https://a.example/", "oauth-authorization-server", false);
        assert_eq!(found, ["https://a.example/.well-known/oauth-authorization-server"]);
    }
}
