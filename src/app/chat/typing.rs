//! Lines that a person types. They are read by a thread of their own, because reading a terminal cannot be given up: the thread
//! ends with the process, and nobody waits for it.

use tokio::sync::mpsc;

/// The terminal. Nothing is read before a line is wanted.
#[derive(Debug, Default)]
pub struct Typing {
    lines: Option<mpsc::Receiver<String>>,
}

impl Typing {
    /// The next line; never, once the input has ended. Cancel-safe.
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
