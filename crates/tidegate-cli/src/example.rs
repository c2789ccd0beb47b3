//! The policy for those who have none yet: every kind of limiter, small enough to run into.

use tidegate::Policy;

/// The example policy.
pub(crate) fn policy() -> Policy {
    let text = include_str!("example.toml").to_owned();
    let config = crate::config::parse("example.toml", text, std::path::Path::new(""), Vec::new());
    config.expect("a test holds that the example is valid").policy
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_is_valid() {
        assert_eq!(super::policy().limiters().len(), 5);
    }
}
