//! The names of ZooKeeper's settings, and what becomes of each in Atoll's configuration.

/// The setting that permits listeners without TLS that other machines can reach.
pub const BEYOND: &str = "atoll.listen.listen_beyond_loopback_without_tls";
/// The setting for how often snapshots and restores may be requested.
pub const BOTH_INTERVALS: &str = "admin.rateLimiterIntervalInMS";
/// The file with the servers of an ensemble that was reconfigured.
pub const DYNAMIC_FILE: &str = "dynamicConfigFile";

/// How a value is written in Atoll's configuration.
#[derive(Clone, Copy)]
pub enum Kind {
    Number,
    /// A number; -1 means the default.
    NumberOrDefault,
    Text,
    /// true or false.
    Flag,
    /// Texts separated by commas.
    List,
}

/// ZooKeeper's name, without the prefix `zookeeper.` that system properties have, then Atoll's table and name.
pub const KNOWN: &[(&str, &str, &str, Kind)] = &[
    ("tickTime", "zookeeper", "tick_ms", Kind::Number),
    ("minSessionTimeout", "zookeeper", "min_session_timeout_ms", Kind::NumberOrDefault),
    ("maxSessionTimeout", "zookeeper", "max_session_timeout_ms", Kind::NumberOrDefault),
    ("jute.maxbuffer", "zookeeper", "max_frame_bytes", Kind::Number),
    ("maxClientCnxns", "zookeeper", "max_connections_of_address", Kind::Number),
    ("maxCnxns", "zookeeper", "max_connections", Kind::Number),
    ("globalOutstandingLimit", "zookeeper", "max_outstanding", Kind::Number),
    ("connection_throttle_tokens", "zookeeper", "connection_tokens", Kind::Number),
    ("connection_throttle_fill_time", "zookeeper", "connection_fill_every_ms", Kind::Number),
    ("connection_throttle_fill_count", "zookeeper", "connection_fill_count", Kind::Number),
    ("4lw.commands.whitelist", "zookeeper", "words", Kind::List),
    ("DigestAuthenticationProvider.superDigest", "zookeeper", "super_digest", Kind::Text),
    ("X509AuthenticationProvider.superUser", "zookeeper", "x509_super", Kind::Text),
    ("superUser", "zookeeper", "sasl_super", Kind::Text),
    ("java.security.auth.login.config", "zookeeper", "jaas", Kind::Text),
    ("sasl.serverconfig", "zookeeper", "jaas_section", Kind::Text),
    ("ssl.clientAuth", "zookeeper", "tls_client_certificates", Kind::Text),
    ("enforceQuota", "zookeeper", "enforce_quota", Kind::Flag),
    ("readonlymode.enabled", "zookeeper", "read_only_mode", Kind::Flag),
    ("admin.snapshot.enabled", "zookeeper", "admin_snapshot", Kind::Flag),
    ("admin.snapshot.intervalInMS", "zookeeper", "admin_snapshot_every_ms", Kind::Number),
    ("admin.restore.enabled", "zookeeper", "admin_restore", Kind::Flag),
    ("admin.restore.intervalInMS", "zookeeper", "admin_restore_every_ms", Kind::Number),
    ("znode.container.checkIntervalMs", "zookeeper", "container_check_every_ms", Kind::Number),
];

/// Settings that other code than [`KNOWN`] translates.
pub const BY_HAND: [&str; 20] = [
    "dataDir",
    "clientPort",
    "clientPortAddress",
    "admin.enableServer",
    "admin.serverAddress",
    "admin.serverPort",
    BOTH_INTERVALS,
    "secureClientPort",
    "secureClientPortAddress",
    "ssl.keyStore.location",
    "ssl.trustStore.location",
    "metricsProvider.httpPort",
    "metricsProvider.httpHost",
    "metricsProvider.className",
    BEYOND,
    DYNAMIC_FILE,
    "sessionRequireClientSASLAuth",
    "requireClientAuthScheme",
    "enforce.auth.enabled",
    "enforce.auth.schemes",
];

/// Settings of ZooKeeper that have no meaning here, with the reason or what to use instead. A name that ends in a dot stands for all that
/// begin with it.
pub const WITHOUT_MEANING: &[(&str, &str)] = &[
    ("dataLogDir", "there is one folder, below dataDir"),
    ("initLimit", "a node that joins late fetches the state, however long that takes"),
    ("syncLimit", "see the table [timings]"),
    ("connectToLearnerMasterLimit", "see the table [timings]"),
    ("electionAlg", "there is no election"),
    ("electionPortBindRetry", "there is no election"),
    ("leaderServes", "every node serves"),
    ("cnxTimeout", "see the table [timings]"),
    ("standaloneEnabled", "a file without servers is one node"),
    ("reconfigEnabled", "`atoll node` changes the members"),
    ("quorumListenOnAllIPs", "the line `server.N` says where this node listens"),
    ("snapCount", "the log is trimmed by itself"),
    ("commitLogCount", "the log is trimmed by itself"),
    ("snapSizeLimitInKb", "the log is trimmed by itself"),
    ("snapshot.", "the state is in a store on disk, not in files of snapshots"),
    ("preAllocSize", "the journal has segments of a fixed size"),
    ("autopurge.", "the log is trimmed by itself"),
    ("forceSync", "what is acknowledged is always synced"),
    ("fsync.", "`atoll status` and the metrics show slow disks"),
    ("allowSaslFailedClients", "the connection of a client whose SASL fails ends"),
    ("skipACL", "ACLs are always checked"),
    ("localSessionsEnabled", "every session is in the replicated state"),
    ("localSessionsUpgradingEnabled", "every session is in the replicated state"),
    ("syncEnabled", "there are no observers"),
    ("serverCnxnFactory", "there is one implementation"),
    ("client.portUnification", "TLS has a port of its own, `secureClientPort`"),
    ("nio.", "there is one implementation"),
    ("netty.", "there is one implementation"),
    ("flushDelay", "the node forms batches by itself"),
    ("maxWriteQueuePollTime", "the node forms batches by itself"),
    ("maxBatchSize", "the node forms batches by itself"),
    ("requestThrottle", "see `zookeeper.max_outstanding`"),
    ("request_throttle", "see `zookeeper.max_outstanding`"),
    ("watchManagerName", "there is one implementation"),
    ("metricsProvider.exportJvmInfo", "there is no JVM"),
    ("admin.idleTimeout", "the admin server closes idle connections by itself"),
    ("admin.commandURL", "the commands are below /commands"),
    ("admin.httpVersion", "the admin server speaks HTTP/1.1"),
    ("ssl.protocol", "TLS 1.2 and 1.3 are spoken"),
    ("ssl.enabledProtocols", "TLS 1.2 and 1.3 are spoken"),
    ("ssl.ciphersuites", "the suites are those of the TLS library"),
    ("ssl.keyStore.", "the files of a key are PEM, without a password"),
    ("ssl.trustStore.", "the file of authorities is PEM, without a password"),
    ("ssl.hostnameVerification", "clients are known by their certificates, not by their hosts"),
    ("ssl.clientHostnameVerification", "clients are known by their certificates, not by their hosts"),
    ("ssl.quorum.", "see the table [tls]"),
    ("DigestAuthenticationProvider.", "see `zookeeper.super_digest`"),
    ("multiAddress.", "a node has one address for the others"),
    ("tcpKeepAlive", "nodes send heartbeats"),
    ("digest.enabled", "`atoll database verify` compares the states of the nodes"),
];

/// Settings that demand what Atoll does not do. To ignore them would leave open what an operator believes to be closed. Each with the value
/// that demands nothing, and what to use instead.
pub const DEMANDS: &[(&str, &str, &str)] = &[
    (
        "sslQuorum",
        "false",
        "nodes speak TLS to each other with the files of [tls]: write `atoll.tls.cert`, `key` and `ca`",
    ),
    (
        "quorum.auth.enableSasl",
        "false",
        "nodes know each other by the certificates of [tls]: write `atoll.tls.cert`, `key` and `ca`",
    ),
    ("quorum.auth.learnerRequireSasl", "false", "nodes know each other by the certificates of [tls]"),
    ("quorum.auth.serverRequireSasl", "false", "nodes know each other by the certificates of [tls]"),
    (
        "ssl.crl",
        "false",
        "lists of revoked certificates are read from a file: write `atoll.zookeeper.tls_revoked`",
    ),
    ("ssl.ocsp", "false", "revoked certificates are not looked up: issue certificates that soon expire"),
    (
        "peerType",
        "participant",
        "there are no observers: a node without the role `log` serves clients and stores no entries",
    ),
    (
        "kerberos.removeHostFromPrincipal",
        "",
        "Kerberos is not served: use certificates, or SASL's DIGEST-MD5",
    ),
    (
        "kerberos.removeRealmFromPrincipal",
        "",
        "Kerberos is not served: use certificates, or SASL's DIGEST-MD5",
    ),
];

/// The providers of identities that are built in, by the names of their classes.
pub const PROVIDERS: [&str; 5] = [
    "SASLAuthenticationProvider",
    "X509AuthenticationProvider",
    "DigestAuthenticationProvider",
    "EnsembleAuthenticationProvider",
    "IPAuthenticationProvider",
];
