//! Where randomness comes from.

use std::sync::Arc;

/// The operating system gives no random bytes.
pub type NoRandomness = getrandom::Error;

/// Gives random bytes that nobody can guess.
pub trait Randomness: Send + Sync {
    /// Fills the buffer.
    ///
    /// # Errors
    /// If the operating system gives none.
    fn fill(&self, buffer: &mut [u8]) -> Result<(), NoRandomness>;
}

/// Randomness that is passed around.
pub type SharedRandomness = Arc<dyn Randomness>;

/// That of the operating system.
#[derive(Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), NoRandomness> {
        getrandom::fill(buffer)
    }
}

/// Counting bytes for tests: no two fillings are the same, and the same program gets the same.
#[derive(Debug, Default)]
pub struct CountingBytes(std::sync::atomic::AtomicU64);

impl Randomness for CountingBytes {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), NoRandomness> {
        let number = self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_be_bytes();
        for (byte, with) in buffer.iter_mut().zip(number.into_iter().rev().cycle()) {
            *byte = with;
        }
        Ok(())
    }
}
