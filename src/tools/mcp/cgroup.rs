//! A control group for each server's process, where the kernel lets this program make one.
//!
//! What a process starts is in its control group from the beginning, whatever it does then to hide: so this tells what is left of a
//! server when nothing else does. Owns these groups. They stand below the one that this program is in, are called by the word of
//! their server, which no other program has, and have no controllers, so that they bound nothing. Where the second version of control
//! groups is not mounted, or is not ours to write, there are none, and all else is as it would be with them. On Linux only. Must not
//! know servers, nor how else it is found what they leave behind.

pub use self::groups::{Cgroup, below};

#[cfg(target_os = "linux")]
mod groups {
    use std::fs;
    use std::io::{self, Write as _};
    use std::os::fd::OwnedFd;
    use std::path::{Component, Path, PathBuf};
    use std::time::Duration;

    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    /// How long those that end are given before they are looked for again.
    const LOOK: Duration = Duration::from_millis(20);
    /// How often at most they are killed: each may have started another one just then, or may take its time.
    const ROUNDS: usize = 100;

    /// One of them.
    pub struct Cgroup {
        folder: PathBuf,
    }

    impl Cgroup {
        /// Makes one called `word`, and puts a process into it that has not been waited for. What that has started by now stays
        /// outside, and is found by its process group, its environment or its parent, or not at all. May hold the thread for some
        /// 20 ms, until all processors know that the process moves.
        pub fn around(process: u32, word: &str) -> Option<Self> {
            let group = Self { folder: own()?.join(word) };
            // Whoever starts beside this program removes what is empty, and may have met this one before anybody was in it.
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

        /// Whether no process is in it, nor in any below it.
        pub fn is_empty(&self) -> bool {
            self.members().is_empty()
        }

        /// Removes it if it is empty, and tells whether it is gone.
        pub fn remove(&self) -> bool {
            // Whoever else removes it does the same.
            let is_gone = |group: &PathBuf| match fs::remove_dir(group) {
                Ok(()) => true,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            self.is_empty() && self.tree().iter().all(is_gone)
        }

        /// Kills what is in it, removes it, and tells how many processes there were.
        pub async fn end(&self) -> usize {
            let mut found = 0;
            for _ in 0..ROUNDS {
                if self.remove() {
                    break;
                }
                // Who was ended just before this may still be on its way out, and has been counted.
                tokio::time::sleep(LOOK).await;
                found = found.max(self.kill());
            }
            found
        }

        /// Kills what is in it at this moment, and tells how many processes that were.
        fn kill(&self) -> usize {
            let found = self.members();
            // Before Linux 5.14 the kernel does not do it at once for all of them.
            if write(&self.folder.join("cgroup.kill"), "1").is_err() {
                let hold = |pid: &Pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?));
                let held: Vec<(Pid, OwnedFd)> = found.iter().filter_map(hold).collect();
                // Looked at again after they are held: they are those that were found, or nobody.
                let still = self.members();
                for (_, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
                    // It may have ended meanwhile.
                    let _ = pidfd_send_signal(process, Signal::KILL);
                }
            }
            found.len()
        }

        /// Those that are in it, or in one below it.
        fn members(&self) -> Vec<Pid> {
            let lists = self.tree().into_iter().filter_map(|group| fs::read_to_string(group.join("cgroup.procs")).ok());
            let all = lists.collect::<String>();
            all.lines().filter_map(|number| Pid::from_raw(number.parse().ok()?)).collect()
        }

        /// It and those that its processes have made below it, each after all that are below that.
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

    /// The groups directly below our own that are called like that, whoever has made them.
    pub fn below(is_meant: impl Fn(&str) -> bool) -> Vec<Cgroup> {
        let all = own().map(|own| children(&own)).unwrap_or_default().into_iter();
        let meant = all.filter(|folder| folder.file_name().and_then(|name| name.to_str()).is_some_and(&is_meant));
        meant.map(|folder| Cgroup { folder }).collect()
    }

    fn children(group: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(group).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
    }

    /// Writes to a file of the kernel's. Makes none: where it is missing, something else is mounted there.
    fn write(file: &Path, text: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(file)?.write_all(text.as_bytes())
    }

    /// The folder of the group that this program is in.
    fn own() -> Option<PathBuf> {
        let read = |name: &str| Some(String::from_utf8_lossy(&fs::read(format!("/proc/self/{name}")).ok()?).into_owned());
        folder(&read("mountinfo")?, &read("cgroup")?)
    }

    /// The same, by what the kernel says of our mounts and of our groups. What is mounted may be a part of the hierarchy, in which our
    /// group is not, or one of which our group is no part.
    pub(super) fn folder(mounts: &str, groups: &str) -> Option<PathBuf> {
        let own = Path::new(groups.lines().find_map(|line| line.strip_prefix("0::"))?);
        mounts.lines().find_map(|line| {
            let (mount, what) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3).map(plain);
            let (root, place) = (fields.next()?, fields.next()?);
            let inside = own.strip_prefix(root).ok()?;
            let is_shown = what.starts_with("cgroup2 ") && inside.components().all(|part| matches!(part, Component::Normal(_)));
            is_shown.then(|| Path::new(&place).join(inside))
        })
    }

    /// A path as it is, of which the kernel writes some characters as three octal digits.
    fn plain(field: &str) -> String {
        field.replace(r"\040", " ").replace(r"\011", "\t").replace(r"\012", "\n").replace(r"\134", r"\")
    }
}

#[cfg(not(target_os = "linux"))]
mod groups {
    /// There is none.
    pub enum Cgroup {}

    impl Cgroup {
        /// There is none.
        pub fn around(_process: u32, _word: &str) -> Option<Self> {
            None
        }

        pub fn is_empty(&self) -> bool {
            match *self {}
        }

        pub fn remove(&self) -> bool {
            match *self {}
        }

        pub fn end(&self) -> std::future::Ready<usize> {
            match *self {}
        }
    }

    /// There is none.
    pub fn below(_is_meant: impl Fn(&str) -> bool) -> Vec<Cgroup> {
        Vec::new()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::PathBuf;

    use super::groups::folder;

    /// A machine with both versions, whose second one is at `/sys/fs/cgroup/unified`.
    const BOTH: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";

    fn mounted(root: &str, place: &str) -> String {
        let disk = "22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/root rw";
        format!("{disk}\n30 22 0:26 {root} {place} rw,nosuid - cgroup2 cgroup rw\n")
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

    /// As a process sees it that stands outside of its own namespace, or was not put into one with its mounts.
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
