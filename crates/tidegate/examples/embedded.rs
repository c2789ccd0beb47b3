//! A limiter inside a program: by user and by address, both or neither.
//!
//! `cargo run -p tidegate --example embedded`

use tidegate::{Algorithm, AskError, Gate, LimiterSpec, Policy, Request, Rules};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let by_user = Rules::new(Algorithm::SlidingLog, &["3 per minute".parse()?, "100 per hour".parse()?])?;
    let by_address = Rules::new(Algorithm::TokenBucket, &["5 per minute burst 5 block 10m".parse()?])?;
    let gate = Gate::embedded(Policy::new(vec![
        LimiterSpec::new("login-user", by_user).by(Some("login"), &["user"]),
        LimiterSpec::new("login-ip", by_address).by(Some("login"), &["ip"]),
    ])?);

    for attempt in 1..=4 {
        println!("attempt {attempt} of ann:  {}", login(&gate, "ann", "192.0.2.1")?);
    }
    for attempt in 1..=3 {
        println!("attempt {attempt} of bob:  {}", login(&gate, "bob", "192.0.2.1")?);
    }
    Ok(())
}

fn login(gate: &Gate, user: &str, address: &str) -> Result<String, AskError> {
    let attributes = [("user", user.as_bytes()), ("ip", address.as_bytes())];
    let answer = gate.decide(&Request::of(Some("login"), &attributes))?;
    let limiter = answer.limiter.map_or_else(|| "nobody".to_owned(), |limiter| limiter.name.clone());
    Ok(match answer.retry_after {
        None => format!("welcome ({} left, says {limiter})", answer.remaining.unwrap_or_default()),
        Some(wait) => format!("not for {} s, says {limiter}", wait.as_secs_ceil()),
    })
}
