//! The command line: its commands and flags, and the module that runs each command.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use crate::app::chat;
use crate::app::commands::output::print;
use crate::app::commands::rotate_secrets::{self, RotateArgs};
use crate::app::commands::{cleanup, doctor, healthcheck, keys, migrate, serve, users};
use crate::app::config::{self, Environment, Flag, Loaded};
use crate::app::process::log;
use crate::app::wiring::file_reader;
use crate::app::wiring::parts::OpenPurpose;
use crate::domain::access::principal::UserRole;
use crate::service::CompactionMode;
use crate::store::OnClone;
use crate::tools::mcp::process::orphans;

/// A self-hosted agent server that never loses an accepted message.
#[derive(Debug, Parser)]
#[command(name = "capstan", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: SettingFlags,
}

/// Settings as flags. They have priority over the environment and the configuration file.
#[derive(Debug, Clone, Default, Args)]
struct SettingFlags {
    /// Configuration file; by default capstan.toml in the working directory, if it exists.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address and port to listen on.
    #[arg(long, global = true, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// The role of this process: all, api or worker. `keys create --role` is the role of a user.
    #[arg(long, value_name = "ROLE")]
    role: Option<String>,
    /// postgres://... or sqlite:PATH. Other users of the machine can see flags: prefer DATABASE_URL if it contains a password.
    #[arg(long, global = true, value_name = "URL")]
    database_url: Option<String>,
    /// Data directory: the SQLite database, the master keys, and `files/` for tools.
    #[arg(long, global = true, value_name = "FOLDER")]
    data_dir: Option<String>,
    /// Default model, as provider/name.
    #[arg(long, global = true, value_name = "PROVIDER/NAME")]
    model: Option<String>,
    /// A standard {"mcpServers": {...}} file.
    #[arg(long, global = true, value_name = "FILE")]
    mcp_config: Option<String>,
}

impl SettingFlags {
    fn flags(&self) -> Vec<Flag> {
        [
            ("--listen", "server.listen", &self.listen),
            ("--role", "server.role", &self.role),
            ("--database-url", "database.url", &self.database_url),
            ("--data-dir", "server.data_dir", &self.data_dir),
            ("--model", "agent.model", &self.model),
            ("--mcp-config", "tools.mcp_config", &self.mcp_config),
        ]
        .into_iter()
        .filter_map(|(name, key, value)| Some(Flag { name, key, value: value.clone()? }))
        .collect()
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and execute runs (the default).
    Serve {
        /// The role of this process: all, api or worker.
        #[arg(long, value_name = "ROLE")]
        role: Option<String>,
        /// Accept a detected copy of the database, such as a restored backup, as the database from now on.
        #[arg(long)]
        accept_restore: bool,
    },
    /// Migrate the database's schema and exit.
    Migrate {
        /// Accept the database as a restored copy, even if no copy was detected.
        #[arg(long)]
        accept_restore: bool,
    },
    /// Print the OpenAPI document of the API.
    Openapi {
        /// Print the document of the other protocols instead.
        #[arg(long)]
        protocols: bool,
    },
    /// Print the reference of all settings and their defaults, as Markdown.
    Settings,
    /// Print the effective settings, secrets redacted, with the source of each.
    Config,
    /// Check settings, database, data directory, model and MCP servers.
    Doctor,
    /// Do the server's background maintenance now: remove expired rows, compact the deltas of old runs.
    Cleanup {
        /// Only print what would be done.
        #[arg(long)]
        dry_run: bool,
    },
    /// Manage API keys.
    Keys {
        #[command(subcommand)]
        command: KeysCommand,
    },
    /// Manage users.
    Users {
        #[command(subcommand)]
        command: UsersCommand,
    },
    /// Manage the secrets in the database and the master keys that encrypt them.
    Secrets {
        #[command(subcommand)]
        command: SecretsCommand,
    },
    /// Ask a running server a question, and show the answer.
    Chat(chat::ChatArgs),
    /// Check whether the server of this configuration is ready; the exit code is 0 if it is. For container health checks.
    Healthcheck,
    /// Started by the server: detects the type of the file on standard input and extracts its text.
    #[command(name = file_reader::COMMAND, hide = true)]
    ReadFile {
        /// Limit of the extracted text, in characters.
        most_chars: usize,
        /// The file's name.
        name: String,
    },
    /// Started by the server: waits until the server has exited, and ends the processes that it left.
    #[command(name = orphans::GUARD_COMMAND, hide = true)]
    EndOrphans {
        /// The marker of these processes: the value of `MCP_STARTED_BY` in their environment.
        marker: String,
        /// The program that runs containers, if the server may have started any. Their names begin with the marker.
        container_engine: Option<PathBuf>,
        /// The directory of files that are mounted into containers.
        mounted_files_dir: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum UsersCommand {
    /// Change the role of a user, which applies to all their keys.
    Role {
        /// The user's name.
        name: String,
        /// The new role.
        #[arg(value_parser = role_parser())]
        role: UserRole,
    },
    /// Set the groups of a user; without names, remove the user from all groups. An agent can be restricted to groups.
    SetGroups {
        /// The user's name.
        name: String,
        /// The groups: each 1 to 64 of a-z, 0-9, '_' and '-'; at most 32.
        #[arg(value_name = "GROUP")]
        groups: Vec<String>,
    },
    /// Delete a user permanently, with all keys, conversations, files and other records.
    Delete {
        /// The user's name.
        name: String,
        /// Confirm the deletion. Without this flag, the command only counts what it would delete.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// Create a key and print it once, alone on the last line.
    Create {
        /// The user's name; a missing user is created.
        #[arg(long)]
        user: String,
        /// The role of a new user, which applies to all their keys; by default member. `users role` changes it.
        #[arg(long, value_parser = role_parser())]
        role: Option<UserRole>,
    },
    /// List all keys by id and label.
    List,
    /// Revoke a key: within 5 s, every server refuses it and ends the streams that were opened with it.
    Revoke {
        /// The key's id or label, as shown by `keys list`.
        #[arg(value_name = "ID|LABEL")]
        key: String,
    },
}

#[derive(Debug, Subcommand)]
enum SecretsCommand {
    /// Encrypt every secret with the newest master key. Can be repeated, and works beside running servers.
    Rotate(RotateArgs),
}

/// Parses the name of a role. The domain must not depend on the parser of the command line.
fn role_parser() -> impl TypedValueParser<Value = UserRole> {
    PossibleValuesParser::new(UserRole::ALL.map(UserRole::as_str)).try_map(|name| UserRole::from_name(&name).ok_or("unknown role"))
}

pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli, &Environment::of_process()) {
        Ok(code) => code,
        Err(error) => {
            log::print_error(&format!("capstan: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(mut cli: Cli, environment: &Environment) -> anyhow::Result<ExitCode> {
    let command = cli.command.take().unwrap_or(Command::Serve { role: None, accept_restore: false });
    if let Command::Serve { role: Some(role), .. } = &command {
        cli.settings.role = Some(role.clone());
    }
    let load = || -> anyhow::Result<Loaded> {
        config::check_variables(environment)?;
        let named = cli.settings.config.clone().or_else(|| environment.get("CAPSTAN_CONFIG").map(PathBuf::from));
        let file = config::read_file(named.as_deref())?;
        Ok(config::load(file, environment, &cli.settings.flags())?)
    };
    match command {
        Command::Serve { accept_restore, .. } => {
            let on_clone = if accept_restore { OnClone::Accept } else { OnClone::Refuse };
            block_on(serve::run(load()?, environment, on_clone))
        }
        Command::Migrate { accept_restore } => {
            let purpose = if accept_restore { OpenPurpose::Server(OnClone::AcceptUndetected) } else { OpenPurpose::Command };
            block_on(migrate::run(&load()?, purpose))
        }
        Command::Openapi { protocols: false } => print(&crate::http::openapi_json()),
        Command::Openapi { protocols: true } => print(&crate::http::protocols_json()),
        Command::Settings => print(&config::reference().map_err(anyhow::Error::msg)?),
        Command::Config => print(&config::show(&load()?)),
        Command::Doctor => match load() {
            Ok(loaded) => block_on(doctor::run(&loaded, environment)),
            Err(error) => doctor::report_settings(&error),
        },
        Command::Cleanup { dry_run } => {
            let mode = if dry_run { CompactionMode::Count } else { CompactionMode::Write };
            block_on(cleanup::run(&load()?, mode))
        }
        Command::Keys { command: KeysCommand::Create { user, role } } => block_on(keys::create(&load()?, &user, role)),
        Command::Keys { command: KeysCommand::List } => block_on(keys::list(&load()?)),
        Command::Keys { command: KeysCommand::Revoke { key } } => block_on(keys::revoke(&load()?, &key)),
        Command::Users { command: UsersCommand::Role { name, role } } => block_on(users::set_role(&load()?, &name, role)),
        Command::Users { command: UsersCommand::SetGroups { name, groups } } => {
            block_on(users::set_groups(&load()?, &name, groups.into_iter().collect()))
        }
        Command::Users { command: UsersCommand::Delete { name, yes } } => block_on(users::delete(&load()?, &name, yes)),
        Command::Secrets { command: SecretsCommand::Rotate(args) } => block_on(rotate_secrets::run(&load()?, args)),
        Command::Chat(args) => block_on(chat::run(&args, cli.settings.model.as_deref(), &load()?, environment)),
        Command::Healthcheck => block_on(healthcheck::run(&load()?)),
        Command::ReadFile { most_chars, name } => file_reader::run(&name, most_chars),
        Command::EndOrphans { marker, container_engine, mounted_files_dir } => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(orphans::run_guard(&marker, container_engine.as_deref(), mounted_files_dir.as_deref()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn block_on(command: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime cannot be started")?;
    runtime.block_on(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
        let cli = Cli::parse_from(["capstan", "--role", "api", "serve", "--listen", "127.0.0.1:1"]);
        let keys: Vec<_> = cli.settings.flags().into_iter().map(|flag| (flag.key, flag.value)).collect();
        assert_eq!(keys, [("server.listen", "127.0.0.1:1".to_owned()), ("server.role", "api".to_owned())]);
        let cli = Cli::parse_from(["capstan", "serve", "--role", "worker"]);
        assert!(matches!(cli.command, Some(Command::Serve { role: Some(role), accept_restore: false }) if role == "worker"));
    }

    #[test]
    fn role_of_a_key_differs_from_that_of_the_process() {
        for (arguments, expected) in [(&["--role", "admin"][..], "Some(Admin)"), (&[][..], "None")] {
            let whole = ["capstan", "keys", "create", "--user", "ada"].iter().chain(arguments);
            let cli = Cli::try_parse_from(whole).unwrap();
            let Some(Command::Keys { command: KeysCommand::Create { role, .. } }) = cli.command else { panic!("another command") };
            assert_eq!(format!("{role:?}"), expected);
            assert!(cli.settings.flags().is_empty());
        }
    }

    #[test]
    fn every_command_parses_with_its_flags() {
        let lines = [
            "keys create --user ada --role admin --data-dir d",
            "keys create --user ada",
            "users role ada admin --data-dir d",
            "users set-groups ada staff editors --data-dir d",
            "users set-groups ada",
            "keys list",
            "secrets rotate --new-key --forget-lost --dry-run --data-dir d",
            "keys revoke cap_abcdef --data-dir d",
            "chat hello --url http://x --key k --conversation conv_1 --model a/b",
            "doctor --config c.toml",
            "config --mcp-config m.json",
            "migrate --database-url sqlite:x",
            "migrate --accept-restore",
            "serve --role api --accept-restore",
            "openapi",
            "settings",
            "cleanup --data-dir d",
            "cleanup --dry-run",
            "healthcheck --listen 127.0.0.1:1",
        ];
        for line in lines {
            Cli::try_parse_from(std::iter::once("capstan").chain(line.split(' ')))
                .unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
