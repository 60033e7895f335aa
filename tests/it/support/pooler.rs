//! A PgBouncer in transaction mode, in front of the Postgres server of the tests.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::database::Database;
use super::server::{Port, Site};
use super::wait;

/// Fewer sessions than the servers of a test have connections: clients meet each other's.
const SESSIONS: u32 = 10;

/// Debian has the program where only root looks for it.
const PROGRAMS: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub struct Pooler {
    address: std::net::SocketAddr,
    process: Child,
    _port: Port,
    _folder: TempDir,
}

impl Pooler {
    /// Starts one for a database. `settings` are more lines of its configuration.
    pub async fn start(database: &Database, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = Port::free();
        let (host, server_port) =
            database.server().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
        let file = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={server_port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 500\n\
             default_pool_size = {SESSIONS}\n{settings}\n",
            port.number
        );
        std::fs::write(&file, text).unwrap();
        let process = command(folder.path(), &file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let address = ([127, 0, 0, 1], port.number).into();
        let pooler = Self { address, process: process.unwrap(), _port: port, _folder: folder };
        wait::until("the pooler to listen", Duration::from_secs(20), || async {
            tokio::net::TcpStream::connect(address).await.ok()
        })
        .await;
        pooler
    }

    /// Lets the servers of a site reach their database through the pooler.
    pub fn between(&self, site: Site) -> Site {
        let url = site.database.url_through(self.address);
        site.env("DATABASE_URL", &url)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// PgBouncer refuses to run as root.
fn command(folder: &Path, file: &Path) -> Command {
    let mut command = match rustix::process::geteuid().is_root() {
        false => Command::new("pgbouncer"),
        true => {
            let access = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(folder, access).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups", "pgbouncer"]);
            command
        }
    };
    command.env("PATH", PROGRAMS).arg(file);
    command
}
