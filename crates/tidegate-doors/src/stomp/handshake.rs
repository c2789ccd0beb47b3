//! From an HTTP request to a WebSocket (RFC 6455, section 4).

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};

const SUBPROTOCOL: &str = "v12.stomp";
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The header fields of the answer 101.
///
/// # Errors
/// A sentence on what is missing.
pub(crate) fn accept(headers: &HeaderMap) -> Result<HeaderMap, &'static str> {
    if !has_token(headers, UPGRADE.as_str(), "websocket") || !has_token(headers, CONNECTION.as_str(), "upgrade") {
        return Err("/ws speaks WebSocket: send Connection: Upgrade and Upgrade: websocket, or use a WebSocket client");
    }
    if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        return Err("Sec-WebSocket-Version must be 13");
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).filter(|key| key.len() == 24);
    let key = key.ok_or("Sec-WebSocket-Key must be 16 bytes in base64")?;
    let mut answer = HeaderMap::new();
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Ok(value) = HeaderValue::from_str(&accept_key(key.as_bytes())) {
        answer.insert(SEC_WEBSOCKET_ACCEPT, value);
    }
    if has_token(headers, SEC_WEBSOCKET_PROTOCOL.as_str(), SUBPROTOCOL) {
        answer.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    }
    Ok(answer)
}

fn has_token(headers: &HeaderMap, name: &str, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(token))
}

fn accept_key(key: &[u8]) -> String {
    let mut hash = sha1_smol::Sha1::new();
    hash.update(key);
    hash.update(GUID);
    BASE64_STANDARD.encode(hash.digest().bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    const GOOD: [(&str, &str); 4] = [
        ("upgrade", "WebSocket"),
        ("connection", "keep-alive, Upgrade"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn the_example_of_the_rfc() {
        let answer = accept(&headers(&GOOD)).unwrap();
        assert_eq!(answer["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert!(!answer.contains_key("sec-websocket-protocol"));
        let mut offered = GOOD.to_vec();
        offered.push(("sec-websocket-protocol", "v10.stomp, v11.stomp, v12.stomp"));
        assert_eq!(accept(&headers(&offered)).unwrap()["sec-websocket-protocol"], "v12.stomp");
    }

    #[test]
    fn whatever_is_missing_is_named() {
        for (at, part) in [(0, "Upgrade: websocket"), (1, "Upgrade"), (2, "must be 13"), (3, "Sec-WebSocket-Key")] {
            let mut list = GOOD.to_vec();
            list.remove(at);
            assert!(accept(&headers(&list)).unwrap_err().contains(part));
        }
    }
}
