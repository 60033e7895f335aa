//! A control group for the process of each server, if the kernel allows it (Linux, cgroup v2 mounted and writable).
//!
//! All descendants of a process are in its control group, so it contains those that no other search finds. The groups are children of this
//! process's group. Their name is the unique marker of their server, and they have no controllers, so they limit no resource. Must not know
//! servers, nor the other ways to find orphaned processes.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::process::Pid;

/// The interval of searches for killed processes that have not exited yet.
const SEARCH_INTERVAL: Duration = Duration::from_millis(20);
/// The most rounds of killing: a process may have just started another one.
const MAX_ROUNDS: usize = 100;

pub struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// Creates a group called `marker` for a process that has not been reaped. Its existing children stay outside.
    ///
    /// May block the thread for some 20 ms, until all processors know that the process has moved.
    pub fn create_for(process: u32, marker: &str) -> Option<Self> {
        let group = Self { folder: own_path()?.join(marker) };
        // The guard of another process removes empty groups, and may have removed this one before the process was in it.
        match group.take(process).or_else(|_| group.take(process)) {
            Ok(()) => Some(group),
            Err(error) => {
                let folder = group.folder.display();
                tracing::debug!(%error, %folder, "an MCP server has no control group of its own");
                group.remove();
                None
            }
        }
    }

    fn take(&self, process: u32) -> io::Result<()> {
        match fs::create_dir(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(()) | Err(_) => write(&self.folder.join("cgroup.procs"), &process.to_string()),
        }
    }

    /// Returns whether neither the group nor a group below it has a process.
    pub fn is_empty(&self) -> bool {
        self.members().is_empty()
    }

    /// Removes the group if it is empty, and returns whether it no longer exists.
    pub fn remove(&self) -> bool {
        // Another process may remove it at the same time.
        let is_gone = |group: &PathBuf| match fs::remove_dir(group) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        self.is_empty() && self.tree().iter().all(is_gone)
    }

    /// Kills its processes, removes it, and returns the number of processes.
    pub async fn end(&self) -> usize {
        let mut found = 0;
        for _ in 0..MAX_ROUNDS {
            if self.remove() {
                break;
            }
            // A process that was killed before may still be exiting; it is already counted.
            tokio::time::sleep(SEARCH_INTERVAL).await;
            found = found.max(self.kill());
        }
        found
    }

    fn kill(&self) -> usize {
        let found = self.members();
        // `cgroup.kill` exists since Linux 5.14.
        if write(&self.folder.join("cgroup.kill"), "1").is_err() {
            self.kill_each(&found);
        }
        found.len()
    }

    #[cfg(target_os = "linux")]
    fn kill_each(&self, found: &[Pid]) {
        use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
        let hold = |pid: &Pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?));
        let handles: Vec<_> = found.iter().filter_map(hold).collect();
        // Read again after the descriptors are open: a pid that is still a member was not reused.
        let members = self.members();
        for (_, process) in handles.iter().filter(|(pid, _)| members.contains(pid)) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn kill_each(&self, _found: &[Pid]) {}

    /// Returns the processes in it and in the groups below it.
    fn members(&self) -> Vec<Pid> {
        let lists = self.tree().into_iter().filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
        let all = lists.collect::<String>();
        all.lines().filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect()
    }

    /// Returns the group and all groups below it, children before parents.
    fn tree(&self) -> Vec<PathBuf> {
        let (mut found, mut looked_at) = (vec![self.folder.clone()], 0);
        while let Some(group) = found.get(looked_at) {
            let further = children(group);
            found.extend(further);
            looked_at += 1;
        }
        found.reverse();
        found
    }
}

/// Returns the children of our own group with a matching name.
pub fn find_children(is_meant: impl Fn(&str) -> bool) -> Vec<Cgroup> {
    let all = own_path().map(|own| children(&own)).unwrap_or_default().into_iter();
    let meant = all.filter(|folder| folder.file_name().and_then(|name| name.to_str()).is_some_and(&is_meant));
    meant.map(|folder| Cgroup { folder }).collect()
}

fn children(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// Writes to a file of the kernel, and never creates one.
fn write(file: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
}

fn own_path() -> Option<PathBuf> {
    let read = |name: &str| Some(String::from_utf8_lossy(&fs::read(format!("/proc/self/{name}")).ok()?).into_owned());
    folder(&read("mountinfo")?, &read("cgroup")?)
}

/// Returns the folder of our own group by the kernel's lists of mounts and groups; `None` if no mount contains our group.
fn folder(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3).map(plain);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        let inside = own.strip_prefix(root).ok()?;
        let is_mounted =
            file_system.starts_with("cgroup2 ") && inside.components().all(|part| matches!(part, Component::Normal(_)));
        is_mounted.then(|| Path::new(&mount_point).join(inside))
    })
}

/// Decodes the octal escapes of the kernel in a path.
fn plain(field: &str) -> String {
    field.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", r"\")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::folder;

    /// The mounts of a machine with both versions of control groups; version 2 is at `/sys/fs/cgroup/unified`.
    const BOTH: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    fn mounted(root: &str, mount_point: &str) -> String {
        let disk = "22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw";
        format!("{disk}\n30 22 0:26 {root} {mount_point} rw,nosuid - cgroup2 cgroup rw\n")
    }

    #[test]
    fn our_group_is_found_where_it_is_mounted() {
        let both = "9:name=systemd:/elsewhere\n1:cpu:/cpu\n0::/\n";
        assert_eq!(folder(BOTH, both), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let service = "0::/system.slice/capstan.service\n";
        let expected = PathBuf::from("/sys/fs/cgroup/system.slice/capstan.service");
        assert_eq!(folder(&mounted("/", "/sys/fs/cgroup"), service), Some(expected));
        assert_eq!(folder(&mounted("/", r"/odd\040place\1340"), "0::/a b\n"), Some(PathBuf::from(r"/odd place\0/a b")));
    }

    #[test]
    fn a_part_of_the_hierarchy_shows_our_group_if_that_is_in_it() {
        let part = mounted("/docker/one", "/sys/fs/cgroup");
        assert_eq!(folder(&part, "0::/docker/one\n"), Some(PathBuf::from("/sys/fs/cgroup")));
        assert_eq!(folder(&part, "0::/docker/one/inner\n"), Some(PathBuf::from("/sys/fs/cgroup/inner")));
        for elsewhere in ["0::/docker/other\n", "0::/docker/one-more\n", "0::/\n"] {
            assert_eq!(folder(&part, elsewhere), None, "{elsewhere}");
        }
        let both = part + &mounted("/", "/whole");
        assert_eq!(folder(&both, "0::/docker/other\n"), Some(PathBuf::from("/whole/docker/other")));
    }

    /// The view of a process that is outside of its namespace, or was moved into one without its mounts.
    #[test]
    fn a_group_outside_of_what_is_shown_is_not_looked_for() {
        assert_eq!(folder(&mounted("/", "/sys/fs/cgroup"), "0::/../other\n"), None);
        assert_eq!(folder(&mounted("/..", "/sys/fs/cgroup"), "0::/\n"), None);
    }

    #[test]
    fn there_may_be_none() {
        assert_eq!(folder(BOTH, "1:cpu:/\n"), None);
        assert_eq!(folder("40 31 0:37 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "1:cpu:/\n0::/\n"), None);
        assert_eq!(folder("", ""), None);
        assert_eq!(folder("cut - cgroup2 \n30 22\n", "0::/\n"), None);
    }
}
