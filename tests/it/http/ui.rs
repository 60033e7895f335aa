//! The web page: its files and its security headers.

use axum::http::{Method, StatusCode};
use capstan::http::HttpLimits;
use tempfile::TempDir;

use super::rig::{Keys, Reply, Rig};

const INDEX: &str = "<!doctype html><script type=\"module\" src=\"./ui/main-ab12cd34.js\"></script>";

/// Requests a path as a browser without a key.
async fn ask(rig: &Rig, path: &str, known: &str) -> Reply {
    rig.send(Method::GET, path, &[("authorization", ""), ("if-none-match", known)], None).await
}

/// Starts a server whose page is a folder with one file of each kind.
async fn with_page() -> (Rig, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("ui")).unwrap();
    std::fs::write(folder.path().join("index.html"), INDEX).unwrap();
    for name in ["main-ab12cd34.js", "main-ab12cd34.css", "icon.svg", "manifest.webmanifest", ".hidden"] {
        std::fs::write(folder.path().join("ui").join(name), name).unwrap();
    }
    (rig_of(&folder).await, folder)
}

async fn rig_of(folder: &TempDir) -> Rig {
    let path = folder.path().to_owned();
    let options = move |options: &mut capstan::http::HttpOptions| {
        options.page = true;
        options.page_dir = Some(path);
    };
    Rig::with(HttpLimits::default(), options, Keys::One).await
}

#[tokio::test]
async fn page_is_open_and_bound_to_this_server() {
    let (rig, _folder) = with_page().await;
    let expected = [
        ("/", "text/html; charset=utf-8", INDEX),
        ("/ui/main-ab12cd34.js", "text/javascript; charset=utf-8", "main-ab12cd34.js"),
        ("/ui/main-ab12cd34.css", "text/css; charset=utf-8", "main-ab12cd34.css"),
        ("/ui/icon.svg", "image/svg+xml", "icon.svg"),
        ("/ui/manifest.webmanifest", "application/manifest+json", "manifest.webmanifest"),
    ];
    for (path, kind, body) in expected {
        let reply = ask(&rig, path, "").await;
        assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, body), "{path}");
        let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; \
                      manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types dompurify";
        for (name, value) in [
            ("content-type", kind),
            ("content-security-policy", policy),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(reply.header(name), value, "{name} of {path}");
        }
        let tag = reply.header("etag").to_owned();
        let again = ask(&rig, path, &tag).await;
        assert_eq!((again.status, again.body.as_str(), again.header("etag")), (StatusCode::NOT_MODIFIED, "", tag.as_str()));
        assert_eq!(again.header("content-security-policy"), policy);
        assert_eq!(ask(&rig, path, "\"another\"").await.status, StatusCode::OK);
    }
    // The data behind the page needs a key.
    assert_eq!(ask(&rig, "/api/v1/conversations", "").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn paths_out_of_the_page_are_not_found() {
    let (rig, folder) = with_page().await;
    std::fs::write(folder.path().join("secret.js"), "secret").unwrap();
    for path in
        ["/ui/", "/ui/none.js", "/ui/index.html", "/ui/.hidden", "/ui/..%2fsecret.js", "/ui/..%5csecret.js", "/ui/%2fetc%2fpasswd"]
    {
        let reply = ask(&rig, path, "").await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::NOT_FOUND, "not_found"), "{path}");
    }
}

#[tokio::test]
async fn without_a_built_page_the_root_says_how_to_build_it() {
    let rig = rig_of(&tempfile::tempdir().unwrap()).await;
    let reply = ask(&rig, "/", "").await;
    assert_eq!(reply.status, StatusCode::OK);
    assert!(reply.body.contains("Node 20.19") && reply.body.contains("make build"), "{}", reply.body);
    assert_eq!(ask(&rig, "/healthz", "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn without_the_setting_there_is_no_page() {
    let rig = Rig::new().await;
    for path in ["/", "/ui/icon.svg"] {
        let reply = rig.get(path).await;
        assert_eq!((reply.status, reply.code().as_str()), (StatusCode::NOT_FOUND, "not_found"), "{path}");
    }
}
