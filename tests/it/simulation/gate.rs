//! The gate of a node, which all its external effects pass.

use std::sync::Mutex;

use tokio::sync::Notify;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Open,
    Held,
    Shut,
}

/// While the gate is held, the node's calls wait, as if its process were stopped or its network gone. After it is shut, the
/// node is dead: its tasks have no effect and get no reply.
pub struct Gate {
    position: Mutex<Position>,
    moved: Notify,
}

impl Gate {
    pub fn new() -> Self {
        Self { position: Mutex::new(Position::Open), moved: Notify::new() }
    }

    pub async fn pass(&self) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let position = *self.position.lock().unwrap();
            match position {
                Position::Open => return,
                Position::Held => moved.await,
                Position::Shut => std::future::pending().await,
            }
        }
    }

    fn put(&self, position: Position) {
        let mut now = self.position.lock().unwrap();
        if *now != Position::Shut {
            *now = position;
            self.moved.notify_waiters();
        }
    }

    pub fn hold(&self) {
        self.put(Position::Held);
    }

    pub fn open(&self) {
        self.put(Position::Open);
    }

    pub fn shut(&self) {
        self.put(Position::Shut);
    }
}
