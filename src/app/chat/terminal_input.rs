//! Lines from the terminal. A thread reads them, because such a read cannot be cancelled. The thread ends with the process.

use tokio::sync::mpsc;

/// The terminal. Nothing is read before the first [`Typing::line`].
#[derive(Debug, Default)]
pub struct Typing {
    lines: Option<mpsc::Receiver<String>>,
}

impl Typing {
    /// Returns the next line. Waits forever after the end of the input. Cancel-safe.
    pub async fn line(&mut self) -> String {
        let lines = self.lines.get_or_insert_with(read);
        match lines.recv().await {
            Some(line) => line,
            None => std::future::pending().await,
        }
    }
}

fn read() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}
