//! Sample weather for demonstrations.

/// Returns invented weather, always the same for one place.
pub fn sample(place: &str) -> String {
    const SKIES: [&str; 5] = ["sunny", "partly cloudy", "overcast", "rainy", "windy"];
    let place = place.trim();
    let sum: usize = place.to_lowercase().bytes().map(usize::from).sum();
    let sky = SKIES[sum % SKIES.len()];
    format!("SAMPLE DATA, made up for demonstrations: in {place} it is {sky}, {} degrees Celsius.", 5 + sum % 25)
}

#[cfg(test)]
mod tests {
    use super::sample;

    #[test]
    fn weather_of_the_demo_is_marked_as_invented() {
        assert_eq!(sample("Berlin"), sample(" berlin ").replace("berlin", "Berlin"));
        assert!(sample("Berlin").starts_with("SAMPLE DATA"));
    }
}
