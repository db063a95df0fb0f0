//! `--check` looks up the host names of a configuration. A node does so each time it connects, so a name that nobody knows would only
//! show in its log.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::config::Config;

/// How long to wait for the answers to all names together.
const WITHIN: Duration = Duration::from_secs(10);

/// Returns the addresses of a configuration, each with the name of its setting.
fn addresses(config: &Config) -> Vec<(String, &str)> {
    let listeners = [
        ("listen.grpc", Some(&config.grpc)),
        ("listen.peer", Some(&config.peer)),
        ("listen.metrics", config.metrics.as_ref()),
        ("listen.zookeeper", config.zookeeper.as_ref()),
        ("listen.zookeeper_tls", config.zookeeper_tls.as_ref().map(|(address, _)| address)),
        ("listen.zookeeper_admin", config.zookeeper_admin.as_ref()),
    ];
    let of_node = listeners.into_iter().filter_map(|(name, at)| Some((name.to_owned(), at?.as_str())));
    let of_peers = config.peers.iter().map(|(id, peer)| (format!("peer {id}"), peer.address.as_str()));
    of_node.chain(of_peers).collect()
}

/// Returns a line for each address of a configuration whose host cannot be found, in the order of the settings.
pub(super) fn faults(config: &Config) -> Vec<String> {
    let addresses = addresses(config);
    let (told, tell) = mpsc::channel();
    // An answer may take seconds, so all are asked for at once. The threads end with the process.
    for (_, address) in &addresses {
        let (told, address) = (told.clone(), (*address).to_owned());
        std::thread::spawn(move || {
            let found = address.as_str().to_socket_addrs().map(|mut found| found.next().is_some());
            // Nobody listens any more if the time is over.
            let _ = told.send((address, found));
        });
    }
    drop(told);
    let until = Instant::now() + WITHIN;
    let mut answers = BTreeMap::new();
    while let Ok((address, found)) = tell.recv_timeout(until.saturating_duration_since(Instant::now())) {
        answers.insert(address, found);
    }
    let fault = |(name, address): (String, &str)| {
        let why = match answers.get(address) {
            Some(Ok(true)) => return None,
            Some(Ok(false)) => "it has no address".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => format!("no answer within {} s", WITHIN.as_secs()),
        };
        Some(format!("{name}: the host of `{address}` cannot be found: {why}"))
    };
    addresses.into_iter().filter_map(fault).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::serve::config::Overrules;

    /// The top-level domain `invalid` is reserved for names that never exist.
    #[test]
    fn names_that_nobody_knows_are_found_with_their_settings() {
        let over = Overrules { data: Some("d".into()), ..Overrules::default() };
        let fine = Config::without_file(&over).unwrap();
        assert_eq!(faults(&fine), [""; 0]);
        let metrics = Some("node7.invalid:7413".to_owned());
        let wrong = faults(&Config { metrics, grpc: "localhost:7411".to_owned(), ..fine });
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].starts_with("listen.metrics: the host of `node7.invalid:7413` cannot be found: "));
    }
}
