//! The challenge of a server in a 401: the header `WWW-Authenticate` (RFC 9110, RFC 9728).

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// The URL of the resource metadata.
    pub metadata: Option<String>,
    pub scope: Option<String>,
}

impl Challenge {
    /// Parses a header. Schemes other than `Bearer` are ignored.
    pub fn read(header: &str) -> Self {
        let mut challenge = Self::default();
        let Some(at) = header.to_ascii_lowercase().find("bearer") else { return challenge };
        let mut rest = header.get(at + "bearer".len()..).unwrap_or_default();
        while let Some((name, after)) = rest.split_once('=') {
            let name = name.trim_matches([' ', ',', '\t']);
            let (value, after) = value(after);
            match name.to_ascii_lowercase().as_str() {
                "resource_metadata" => challenge.metadata = challenge.metadata.or(Some(value)),
                "scope" => challenge.scope = challenge.scope.or(Some(value)).filter(|scope| !scope.is_empty()),
                _ => {}
            }
            rest = after;
        }
        challenge
    }
}

/// Parses a value, quoted or not, and returns it with the rest.
fn value(text: &str) -> (String, &str) {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let (mut value, mut escaped) = (String::new(), false);
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &quoted[at + 1..]),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Bearer", None, None)]
    #[case("Basic realm=\"a\"", None, None)]
    #[case("Bearer resource_metadata=\"https://a/b?c=d\", scope=\"x y\"", Some("https://a/b?c=d"), Some("x y"))]
    #[case(
        "Basic realm=\"a\", bearer error=\"invalid_token\",Resource_Metadata=https://a/b , scope=x",
        Some("https://a/b"),
        Some("x")
    )]
    #[case("Bearer error_description=\"say \\\"scope=evil\\\"\", scope=\"\"", None, None)]
    #[case("Bearer resource_metadata=\"https://a", Some("https://a"), None)]
    #[case("Bearer ===,,\"", None, None)]
    fn challenges_are_read(#[case] header: &str, #[case] metadata: Option<&str>, #[case] scope: Option<&str>) {
        let expected = Challenge { metadata: metadata.map(str::to_owned), scope: scope.map(str::to_owned) };
        assert_eq!(Challenge::read(header), expected);
    }
}
