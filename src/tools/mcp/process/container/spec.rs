//! The container settings of an entry: its image, and `capstan.container`.

use serde::Deserialize;
use serde_json::Value;

/// A container as an entry requests it. Its limits are at most those of the settings.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    /// The image; `None` for the default image of the command.
    pub image: Option<String>,
    pub memory_mib: Option<u32>,
    pub cpus: Option<f64>,
    pub processes: Option<u32>,
    pub network: bool,
    pub mounts: Vec<Mount>,
}

/// A folder or file of this machine that is mounted in a container.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// The path on this machine.
    pub source: String,
    /// The path in the container.
    pub target: String,
    #[serde(default)]
    pub writable: bool,
}

impl Container {
    /// Parses `capstan.container`: `true`, or an object.
    pub fn read(value: Option<&Value>, image: Option<String>) -> Result<Self, String> {
        let mut container = Self { image: image.map(checked_image).transpose()?, ..Self::default() };
        let object = match value {
            None | Some(Value::Bool(true)) => return Ok(container),
            Some(Value::Object(object)) => object,
            Some(_) => return Err("capstan.container must be true or an object".to_owned()),
        };
        for (key, value) in object {
            match key.as_str() {
                "memory_mib" => container.memory_mib = Some(count(key, value)?),
                "processes" => container.processes = Some(count(key, value)?),
                "cpus" => {
                    let cpus = value.as_f64().filter(|cpus| (0.01..=1_024.0).contains(cpus));
                    container.cpus = Some(cpus.ok_or("capstan.container.cpus must be a number from 0.01")?);
                }
                "network" => container.network = value.as_bool().ok_or("capstan.container.network must be true or false")?,
                "mounts" => {
                    let mounts = value.as_array().ok_or("capstan.container.mounts must be a list")?;
                    container.mounts = mounts.iter().map(mount).collect::<Result<_, _>>()?;
                }
                unknown => {
                    return Err(format!(
                        "capstan.container.{unknown} is unknown; the known keys are memory_mib, cpus, processes, network and mounts"
                    ));
                }
            }
        }
        Ok(container)
    }
}

/// Refuses an image that the command line could mistake for an option.
fn checked_image(image: String) -> Result<String, String> {
    let is_name = image.len() <= 255
        && image.starts_with(|first: char| first.is_ascii_alphanumeric())
        && image.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._/:@-".contains(&byte));
    if is_name { Ok(image) } else { Err("image must be the name of an image, as in registry.example.com/name:1.2".to_owned()) }
}

fn count(key: &str, value: &Value) -> Result<u32, String> {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
    count.ok_or_else(|| format!("capstan.container.{key} must be an integer from 1"))
}

fn mount(value: &Value) -> Result<Mount, String> {
    let mount: Option<Mount> = Some(value).filter(|value| value.is_object()).and_then(|value| Mount::deserialize(value).ok());
    let mount =
        mount.ok_or("each of capstan.container.mounts must be {\"source\": PATH, \"target\": PATH, \"writable\": false}")?;
    for (key, path) in [("source", &mount.source), ("target", &mount.target)] {
        // A comma would begin another option of the mount.
        if !path.starts_with('/') || path.contains([',', '"', '\n', '\r', '\0']) {
            return Err(format!("{key} of a mount must be an absolute path without commas and quotes"));
        }
    }
    Ok(mount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn all_that_can_be_asked_for_is_read() {
        let object = json!({"memory_mib": 64, "cpus": 0.5, "processes": 8, "network": true,
            "mounts": [{"source": "/srv/docs", "target": "/docs"}]});
        let read = Container::read(Some(&object), Some("example.com/a/b:1@sha256:0f".to_owned())).unwrap();
        let mounts = vec![Mount { source: "/srv/docs".to_owned(), target: "/docs".to_owned(), writable: false }];
        let image = Some("example.com/a/b:1@sha256:0f".to_owned());
        let wanted = Container { image, memory_mib: Some(64), cpus: Some(0.5), processes: Some(8), network: true, mounts };
        assert_eq!(read, wanted);
        assert_eq!(Container::read(Some(&json!(true)), None).unwrap(), Container::default());
    }

    #[rstest]
    #[case(json!({"privileged": true}), "capstan.container.privileged is unknown")]
    #[case(json!({"args": ["--privileged"]}), "capstan.container.args is unknown")]
    #[case(json!({"memory_mib": 0}), "memory_mib")]
    #[case(json!({"cpus": "1"}), "cpus")]
    #[case(json!({"mounts": [{"source": "/a,readonly=false", "target": "/b"}]}), "without commas")]
    #[case(json!({"mounts": [{"source": "a", "target": "/b"}]}), "absolute path")]
    #[case(json!({"mounts": [{"source": "/a", "target": "/b", "propagation": "shared"}]}), "each of")]
    #[case(json!(false), "must be true or an object")]
    fn nothing_else_can_be_asked_for(#[case] object: Value, #[case] words: &str) {
        let error = Container::read(Some(&object), None).unwrap_err();
        assert!(error.contains(words), "{error}");
    }

    #[rstest]
    #[case("--privileged")]
    #[case("-v=/:/host")]
    #[case("a b")]
    #[case("")]
    #[case("a\n")]
    fn an_image_is_no_option(#[case] image: &str) {
        assert!(Container::read(None, Some(image.to_owned())).is_err());
    }
}
