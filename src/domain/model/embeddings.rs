//! Vectors that a model returns for texts.

/// The vectors of texts in the order of the texts, all with the same dimensions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Zero if the provider does not report it.
    pub input_tokens: u64,
}
