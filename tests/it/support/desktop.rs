//! A desktop with seven screenshots, and the two real servers of the story in which they are read and renamed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::database::Kind;
use super::model::ModelMock;
use super::server::{Server, Site};
use super::wait;
use crate::mcp::{entry, packages};

/// The content of the screenshots: the first words, which become the file names, and the total number of characters.
const SHOWN: [(&str, usize); 7] = [
    ("Meeting Notes", 61),
    ("Quarterly Report", 11_537),
    ("Train Tickets", 84),
    ("Error Message", 300),
    ("Shopping List", 6_000),
    ("Logbook", 32_613),
    ("Birthday Card", 40),
];

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// The folder. Screenshots count from 1.
pub struct Desktop {
    folder: PathBuf,
}

impl Desktop {
    /// One in a site of the scripted model that has the two servers, and these beside them.
    pub async fn site(kind: Kind, model: &ModelMock, beside: Map<String, Value>) -> (Site, Self) {
        let site = Site::scripted(kind, model).await;
        let desktop = Self { folder: site.folder.path().canonicalize().unwrap().join("Desktop") };
        std::fs::create_dir(&desktop.folder).unwrap();
        for n in 1..=SHOWN.len() {
            std::fs::write(desktop.old(n), desktop.picture(n)).unwrap();
        }
        let mut servers = desktop.servers();
        servers.extend(beside);
        (site.mcp(json!({ "mcpServers": servers })), desktop)
    }

    /// A server of the site whose tools are all there: on a busy machine they may take longer to start than a run waits for them.
    pub async fn start(site: &Site) -> Server {
        let server = site.start().await;
        wait::until("the tools", Duration::from_secs(60), || async {
            let listed = server.get_json("/tools").await;
            listed["servers"].as_array().unwrap().iter().all(|server| server["status"] == "ok").then_some(())
        })
        .await;
        server
    }

    /// The operator trusts both servers. A rename needs no approval, although it may destroy something.
    fn servers(&self) -> Map<String, Value> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/support/ocr.py");
        let trusted = json!({"trusted": true});
        let ocr = json!({"command": packages().join("venv/bin/python"), "args": [script], "capstan": trusted});
        let rules = json!({"trusted": true, "approval": {"move_file": "auto"}});
        let files = json!({"command": "node", "args": [entry("server-filesystem"), self.folder], "capstan": rules});
        Map::from_iter([("ocr".to_owned(), ocr), ("filesystem".to_owned(), files)])
    }

    /// Returns the text on a screenshot.
    pub fn text(&self, n: usize) -> String {
        let (title, chars) = SHOWN[n - 1];
        let mut text = title.to_owned();
        for line in 1.. {
            text.push_str(&format!("\nThis is line {line} of what it shows."));
            if text.len() >= chars {
                break;
            }
        }
        text.truncate(chars);
        text
    }

    fn picture(&self, n: usize) -> Vec<u8> {
        [SIGNATURE, self.text(n).as_bytes()].concat()
    }

    /// Where a screenshot is at first.
    pub fn old(&self, n: usize) -> PathBuf {
        self.folder.join(format!("Screenshot 2026-02-11 at 10.0{n}.00.png"))
    }

    /// Where it is when it is named after what it shows.
    pub fn renamed(&self, n: usize) -> PathBuf {
        self.folder.join(format!("{}.png", SHOWN[n - 1].0.replace(' ', "_")))
    }

    /// The call that lists the folder: a tool and its arguments.
    pub fn listing(&self) -> String {
        format!("filesystem__list_directory {}", json!({"path": self.folder}))
    }

    /// The call that reads a screenshot.
    pub fn reading(&self, n: usize) -> String {
        self.reading_of(&self.old(n))
    }

    /// The call that reads any picture.
    pub fn reading_of(&self, path: &Path) -> String {
        format!("ocr__extract_text_from_image {}", json!({"path": path}))
    }

    /// The call that renames a screenshot.
    pub fn renaming(&self, n: usize) -> String {
        format!("filesystem__move_file {}", json!({"source": self.old(n), "destination": self.renamed(n)}))
    }

    /// Panics unless these screenshots bear their new names and the others their old ones, all of them show what they showed, and
    /// nothing else is there.
    pub fn assert_renamed(&self, renamed: impl IntoIterator<Item = usize>) {
        let renamed: Vec<usize> = renamed.into_iter().collect();
        let place = |n: usize| if renamed.contains(&n) { self.renamed(n) } else { self.old(n) };
        let wanted: BTreeMap<PathBuf, Vec<u8>> = (1..=SHOWN.len()).map(|n| (place(n), self.picture(n))).collect();
        let found = std::fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap().path());
        let found: BTreeMap<PathBuf, Vec<u8>> = found.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        assert!(found == wanted, "a screenshot has changed");
    }
}

/// Makes an agent that is the preset `desktop` but for these fields.
pub async fn like_desktop(server: &Server, name: &str, changes: Value) {
    let mut profile = server.get_json("/agents/desktop").await["profile"].clone();
    for (field, value) in changes.as_object().unwrap() {
        match (profile.get_mut(field), value) {
            (Some(Value::Object(before)), Value::Object(changed)) => before.extend(changed.clone()),
            (Some(_) | None, _) => profile[field] = value.clone(),
        }
    }
    let (status, made) = server.post_json("/agents", &json!({"name": name, "profile": profile})).await;
    assert_eq!(status, 201, "{made}");
}
