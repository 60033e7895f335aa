//! The source of randomness.

use std::sync::Arc;

/// The error of an operating system that provides no random bytes.
pub type NoRandomness = getrandom::Error;

/// Fills buffers with unpredictable bytes.
pub trait Randomness: Send + Sync {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), NoRandomness>;
}

pub type SharedRandomness = Arc<dyn Randomness>;

#[derive(Debug, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), NoRandomness> {
        getrandom::fill(buffer)
    }
}

/// Counting bytes for tests: each buffer differs, and every run of a program gets the same bytes.
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
