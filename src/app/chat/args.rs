use std::path::PathBuf;

use clap::Args;

/// The flags of `capstan chat`.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// The question.
    pub question: String,
    /// The server: that of this configuration, if nothing is said. CAPSTAN_URL sets it too.
    #[arg(long)]
    pub url: Option<String>,
    /// The API key. Other users of the machine can see flags: prefer CAPSTAN_KEY.
    #[arg(long)]
    pub key: Option<String>,
    /// Go on with a conversation.
    #[arg(long, value_name = "ID")]
    pub conversation: Option<String>,
    /// The agent that answers, by its name.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// A file that goes with the question; may be given several times.
    #[arg(long, value_name = "PATH")]
    pub file: Vec<PathBuf>,
}
