//! The loop's rules, one by one and under random inputs.
