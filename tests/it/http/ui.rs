//! The web page: its files and its security headers.

use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use capstan::http::HttpLimits;

use super::rig::{Keys, Reply, Rig};

/// Requests a path as a browser without a key.
async fn ask(rig: &Rig, path: &str, known: &str) -> Reply {
    rig.send(Method::GET, path, &[("authorization", ""), ("if-none-match", known)], None).await
}

/// Returns the files that a file of the page refers to.
fn named(body: &str) -> BTreeSet<String> {
    let pieces = body.split('"').filter_map(|piece| piece.strip_prefix("ui/").or_else(|| piece.strip_prefix("./")));
    pieces.map(|name| format!("/ui/{name}")).collect()
}

#[tokio::test]
async fn the_page_is_open_and_bound_to_this_server() {
    let rig = Rig::with(HttpLimits::default(), |options| options.page = true, Keys::One).await;
    let (mut seen, mut open) = (BTreeSet::new(), vec!["/".to_owned()]);
    while let Some(path) = open.pop() {
        let reply = ask(&rig, &path, "").await;
        assert_eq!(reply.status, StatusCode::OK, "{path}");
        let kind = match path.rsplit_once('.').map(|(_, ending)| ending) {
            None => "text/html; charset=utf-8",
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            Some(other) => panic!("{other}"),
        };
        let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
        for (name, value) in [
            ("content-type", kind),
            ("content-security-policy", policy),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(reply.header(name), value, "{name} of {path}");
        }
        // No code parses markup, and no resource comes from another origin.
        let markup = [
            "innerHTML",
            "outerHTML",
            "HTML(",
            "document.write",
            "DOMParser",
            "Fragment(",
            "srcdoc",
            "eval(",
            "<style",
            " style=\"",
            " onclick=",
        ];
        let foreign = ["src=\"http", "href=\"http", "import \"http", "from \"http", "url(http", "url(//", "@import"];
        for word in markup.into_iter().chain(foreign) {
            assert!(!reply.body.contains(word), "{path} has {word}");
        }
        let tag = reply.header("etag").to_owned();
        let again = ask(&rig, &path, &tag).await;
        assert_eq!((again.status, again.body.as_str(), again.header("etag")), (StatusCode::NOT_MODIFIED, "", tag.as_str()));
        assert_eq!(again.header("content-security-policy"), policy);
        assert_eq!(ask(&rig, &path, "\"another\"").await.status, StatusCode::OK);
        open.extend(named(&reply.body).into_iter().filter(|name| !seen.contains(name)));
        seen.insert(path);
    }
    assert!(seen.len() > 10, "{seen:?}");
    for path in ["/ui/", "/ui/mod.rs", "/ui/index.html", "/ui/..%2fmod.rs"] {
        let reply = ask(&rig, path, "").await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::NOT_FOUND, "not_found"), "{path}");
    }
    // The data behind the page needs a key.
    assert_eq!(ask(&rig, "/api/v1/conversations", "").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn without_the_setting_there_is_no_page() {
    let rig = Rig::new().await;
    for path in ["/", "/ui/main.js"] {
        let reply = rig.get(path).await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::NOT_FOUND, "not_found"), "{path}");
    }
}
