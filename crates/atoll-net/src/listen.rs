//! No door listens beyond loopback without TLS, unless the operator explicitly allows it (design §10).

use std::net::SocketAddr;

/// A plaintext listener that other machines could reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "refusing to listen on {address} without TLS: other machines could reach it; configure TLS, listen on a loopback \
     address, or set listen_beyond_loopback_without_tls"
)]
pub struct ListenRefused {
    /// The requested address.
    pub address: SocketAddr,
}

/// Checks whether a listener may be opened at `address`: with TLS, on loopback, or if the operator allows it.
pub fn check_listener(
    address: SocketAddr,
    tls: bool,
    allow_plaintext_beyond_loopback: bool,
) -> Result<(), ListenRefused> {
    if tls || allow_plaintext_beyond_loopback || address.ip().to_canonical().is_loopback() {
        Ok(())
    } else {
        Err(ListenRefused { address })
    }
}

#[cfg(test)]
mod tests {
    use super::check_listener;

    #[test]
    fn plaintext_stays_on_loopback() {
        for (address, plaintext_ok) in [
            ("127.0.0.1:1", true),
            ("127.8.8.8:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("10.0.0.1:1", false),
            ("[::ffff:10.0.0.1]:1", false),
        ] {
            let address = address.parse().expect("a literal");
            assert_eq!(check_listener(address, false, false).is_ok(), plaintext_ok, "{address}");
            assert!(check_listener(address, true, false).is_ok());
            assert!(check_listener(address, false, true).is_ok());
        }
    }
}
