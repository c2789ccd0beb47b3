//! A proxy of your own in a few lines: `cargo run --example forward -- 127.0.0.1:4040 http://127.0.0.1:9000 "100 per minute"`.

use std::net::TcpListener;
use tidegate::{Algorithm, Gate, LimiterSpec, Rules};
use tidegate_proxy::{Policy, Proxy, Settings, Upstream};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [listen, upstream, limit] = words.as_slice() else {
        return Err("give an address to listen on, an upstream and a limit".into());
    };
    let rules = Rules::new(Algorithm::AlignedWindow, &[limit.parse()?])?;
    let gate = Gate::embedded(tidegate::Policy::new(vec![LimiterSpec::new("proxy", rules)])?);
    let policy = Policy::new(Upstream::new(upstream, None)?, gate.limiter("proxy")?);
    let proxy = Proxy::start(TcpListener::bind(listen)?, None, gate, policy, Settings::default())?;
    println!("listening on http://{}", proxy.address());
    loop {
        std::thread::park();
    }
}
