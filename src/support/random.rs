//! The source of randomness.

use std::sync::Arc;

/// The error of an operating system that gives no random bytes.
pub type NoRandomness = getrandom::Error;

/// Gives unpredictable bytes.
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

/// Counting bytes for tests: each buffer gets other bytes, the same in each run of the program.
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
