//! An axum service behind the gate: two requests a minute for each API key, and it asks itself thrice.
//!
//! `cargo run -p tidegate --features tower --example axum`

use axum::{Router, routing::get};
use tidegate::layer::{Question, RateLimitLayer};
use tidegate::{Algorithm, Gate, LimiterSpec, Policy, Rules};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rules = Rules::new(Algorithm::SlidingLog, &["2 per minute".parse()?, "500 per hour".parse()?])?;
    let gate = Gate::embedded(Policy::new(vec![LimiterSpec::new("api", rules)])?);
    let layer = RateLimitLayer::new(gate, |request| {
        Some(Question::limiter("api", request.headers.get("x-api-key")?.as_bytes()))
    });
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    for _ in 0..3 {
        let mut client = TcpStream::connect(address).await?;
        client.write_all(b"GET / HTTP/1.1\r\nhost: example\r\nx-api-key: k1\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await?;
        println!("{answer}\n");
    }
    Ok(())
}
