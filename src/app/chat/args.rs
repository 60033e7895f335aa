//! The flags of `capstan chat`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// The question.
    pub question: String,
    /// The URL of the server; by default the server of this configuration. CAPSTAN_URL sets it too.
    #[arg(long)]
    pub url: Option<String>,
    /// The API key. Other users of the machine can see flags: prefer CAPSTAN_KEY.
    #[arg(long)]
    pub key: Option<String>,
    /// Continue a conversation.
    #[arg(long, value_name = "ID")]
    pub conversation: Option<String>,
    /// The name of the agent.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// A file to attach to the question; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub file: Vec<PathBuf>,
}
