//! The policy of a server that was started without one: every kind of limiter, small enough to run into.

use crate::config::Config;

/// The example policy with its routes, and the defaults of all else.
pub(crate) fn config() -> Config {
    let text = include_str!("example.toml").to_owned();
    let config = crate::config::parse("example.toml", text, std::path::Path::new(""), Vec::new());
    config.expect("a test holds that the example is valid")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_example_is_valid() {
        let config = super::config();
        assert_eq!((config.policy.limiters().len(), config.udp.routes.len(), config.streams.len()), (5, 1, 1));
    }
}
