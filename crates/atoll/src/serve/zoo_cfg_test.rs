#![allow(clippy::unwrap_used)]

use std::path::Path;

use super::config::Overrules;
use super::zoo_cfg::{Translated, load, translate};

fn read(text: &str) -> Result<Translated, String> {
    translate(Path::new("conf/zoo.cfg"), text, &Overrules::default()).map_err(|f| f.to_string())
}

fn fault_of(text: &str) -> String {
    read(text).expect_err(text)
}

#[test]
fn the_sample_that_zookeeper_ships_is_read_and_what_is_ignored_is_named() {
    let sample = "# The number of milliseconds of each tick\ntickTime=3000\n\ninitLimit=10\nsyncLimit=5\n\
                  dataDir=/tmp/zookeeper\n# the port at which the clients will connect\nclientPort=2281\n\
                  autopurge.snapRetainCount=3\nflux.compensation = 7\n";
    let Translated { config, notes } = read(sample).unwrap();
    assert_eq!(config.data, Path::new("/tmp/zookeeper/atoll"));
    assert_eq!(config.zookeeper.as_deref(), Some("127.0.0.1:2281"));
    assert_eq!(config.zookeeper_options.min_session_timeout_ms, 6_000);
    assert_eq!((config.id, config.peers.len()), (1, 0));
    let lines: Vec<&str> = notes.iter().map(String::as_str).collect();
    assert_eq!(lines.len(), 5, "{notes:?}");
    for (note, start) in lines.iter().zip([
        "conf/zoo.cfg:4: `initLimit` is ignored",
        "conf/zoo.cfg:5: `syncLimit` is ignored",
        "conf/zoo.cfg:8: `clientPort` listens on loopback only",
        "conf/zoo.cfg:9: `autopurge.snapRetainCount` is ignored",
        "conf/zoo.cfg:10: `flux.compensation` is ignored: it is not known as a setting of ZooKeeper",
    ]) {
        assert!(note.starts_with(start), "{note}");
    }
}

#[test]
fn settings_keep_their_meaning() {
    let text = "dataDir=d\nclientPort:2182\nclientPortAddress 127.0.0.2\nmaxClientCnxns=0\nmaxCnxns = 500\n\
                minSessionTimeout=-1\nmaxSessionTimeout=60000\n4lw.commands.whitelist=ruok, \\\n   mntr\n\
                zookeeper.jute.maxbuffer=0x1fffff\nglobalOutstandingLimit=1000\n\
                metricsProvider.className=org.apache.zookeeper.metrics.prometheus.PrometheusMetricsProvider\n\
                metricsProvider.httpHost=127.0.0.1\nmetricsProvider.httpPort=7000\n\
                DigestAuthenticationProvider.superDigest=super:xQJmxLMiHGwaqBvst5y6rkB6HQs=\n\
                atoll.listen.grpc=\"127.0.0.1:7999\"\n";
    let config = read(text).unwrap().config;
    let o = &config.zookeeper_options;
    assert_eq!(config.zookeeper.as_deref(), Some("127.0.0.2:2182"));
    assert_eq!(config.metrics.as_deref(), Some("127.0.0.1:7000"));
    assert_eq!(config.grpc, "127.0.0.1:7999");
    assert_eq!(config.data, Path::new("conf/d/atoll"));
    assert_eq!((o.max_connections_of_address, o.max_connections), (0, 500));
    assert_eq!((o.min_session_timeout_ms, o.max_session_timeout_ms), (4_000, 60_000));
    assert_eq!((o.max_buffer_bytes, o.max_outstanding_of_all), (0x1f_ffff, 1_000));
    assert_eq!(o.words, ["ruok", "mntr"]);
    assert_eq!(o.super_digest.as_deref(), Some("super:xQJmxLMiHGwaqBvst5y6rkB6HQs="));
}

#[test]
fn the_admin_server_is_where_the_file_says_and_nowhere_else_than_on_loopback_unless_it_does() {
    let admin = |text: &str| read(&format!("dataDir=d\n{text}")).unwrap().config;
    let at = |text: &str| admin(text).zookeeper_admin;
    assert_eq!(at(""), None);
    assert_eq!(at("admin.serverPort=8081\n").as_deref(), Some("127.0.0.1:8081"));
    assert_eq!(at("admin.serverPort=8081\nadmin.serverAddress=::1\n").as_deref(), Some("[::1]:8081"));
    let beyond = "atoll.listen.listen_beyond_loopback_without_tls=true\n";
    assert_eq!(at(&format!("admin.serverPort=8081\n{beyond}")).as_deref(), Some("127.0.0.1:8081"));
    assert_eq!(at("admin.serverPort=8081\nadmin.enableServer=false\n"), None);
    assert!(
        read("dataDir=d\nadmin.serverPort=8081\nadmin.serverAddress=10.0.0.1\n").is_err(),
        "not without a word"
    );
    let o = admin(
        "admin.rateLimiterIntervalInMS=500\nadmin.restore.intervalInMS=0\nadmin.snapshot.enabled=false\n",
    );
    let o = o.zookeeper_options.admin;
    assert_eq!((o.snapshot, o.restore), (false, true));
    assert_eq!((o.snapshot_every.as_millis(), o.restore_every.as_millis()), (500, 0));
    for bad in ["admin.enableServer=maybe", "admin.snapshot.enabled=1", "admin.rateLimiterIntervalInMS=often"]
    {
        let told = read(&format!("dataDir=d\n{bad}\n")).unwrap_err().to_string();
        assert!(told.contains("zoo.cfg:2: ") && told.contains("allowed: "), "{told}");
    }
}

#[test]
fn servers_are_members_and_myid_says_which_this_is() {
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("zoo.cfg"), dir.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    let text = "dataDir=data\nserver.1=127.0.0.1:2888:3888;2181\nserver.2=[::1]:2888:3888:participant;[::1]:2182\n\
                server.3=127.0.0.3:2888:3888\n";
    std::fs::write(&file, text).unwrap();
    let no_id = load(&file, &Overrules::default()).unwrap_err().to_string();
    assert!(no_id.contains("zoo.cfg:1: ") && no_id.contains("myid"), "{no_id}");
    std::fs::write(data.join("myid"), "4\n").unwrap();
    let other = load(&file, &Overrules::default()).unwrap_err().to_string();
    assert!(other.contains("there is no line `server.4`"), "{other}");
    std::fs::write(data.join("myid"), "2\n").unwrap();
    let config = load(&file, &Overrules::default()).unwrap().config;
    assert_eq!((config.id, config.peer.as_str()), (2, "[::1]:2888"));
    assert_eq!(config.zookeeper.as_deref(), Some("[::1]:2182"));
    let peers: Vec<&str> = config.peers.values().map(|p| p.address.as_str()).collect();
    assert_eq!(peers, ["127.0.0.1:2888", "[::1]:2888", "127.0.0.3:2888"]);
}

#[test]
fn a_line_that_is_malformed_is_told_with_its_number() {
    for (line, words) in [
        ("tickTime", "this line has no value"),
        ("= 7", "this line has no name"),
        ("tickTime=soon", "`tickTime` is \"soon\"; allowed: an integer"),
        ("tickTime=99", "`tickTime`: `zookeeper.tick_ms` is 99; allowed: an integer, 100 to 60000"),
        ("clientPort=65536", "`clientPort`: `listen.zookeeper` is"),
        ("clientPort=2181\\u00", "four digits"),
        ("4lw.commands.whitelist=ruok,kill", "`4lw.commands.whitelist`: `zookeeper.words` is"),
        ("server.1=here", "`server.1` is \"here\"; allowed: HOST:PORT:PORT"),
        ("server.1=a:1:2:observer", "which is an observer"),
        ("dynamicConfigFile=zoo.cfg.dynamic", "`dynamicConfigFile`: conf/zoo.cfg.dynamic: "),
        ("atoll.listen=1", "`atoll.listen` is not a setting"),
        ("atoll.node.ident=1", "unknown setting `node.ident`"),
    ] {
        let f = fault_of(&format!("dataDir=d\n\n{line}\n"));
        let told = f.lines().find(|l| l.starts_with("conf/zoo.cfg:3: ") && l.contains(words));
        assert!(told.is_some(), "{line}: {f}");
    }
    let twice = fault_of("dataDir=d\ndataDir=e\n");
    assert!(twice.contains(":2: `dataDir` is given a second time, first in line 1"), "{twice}");
    assert!(fault_of("clientPort=2181\n").contains("`dataDir` is missing"));
}

#[test]
fn doors_beyond_loopback_need_the_word() {
    let named = "dataDir=d\nclientPort=2181\nclientPortAddress=0.0.0.0\n";
    let f = fault_of(named);
    assert!(f.contains("conf/zoo.cfg:2: `clientPort`: `listen.zookeeper`"), "{f}");
    let word = "atoll.listen.listen_beyond_loopback_without_tls=true\n";
    assert!(read(&format!("{named}{word}")).is_ok());
    let any = read(&format!("dataDir=d\nclientPort=2181\n{word}")).unwrap();
    assert_eq!(any.config.zookeeper.as_deref(), Some("0.0.0.0:2181"));
    assert!(any.notes.is_empty(), "{:?}", any.notes);
}

/// What demands an identity is honoured, or the node does not start: it never serves anonymous clients then.
#[test]
fn identities_that_are_demanded_are_demanded_here() {
    let of = |lines: &str| read(&format!("dataDir=d\natoll.zookeeper.sasl_users=[\"bob:secret\"]\n{lines}"));
    let required = |lines: &str| of(lines).unwrap().config.zookeeper_options.required_schemes;
    assert!(required("enforce.auth.enabled=false\nenforce.auth.schemes=sasl\n").is_empty());
    assert_eq!(
        required("zookeeper.enforce.auth.enabled=true\nenforce.auth.schemes=sasl,digest\n"),
        ["sasl", "digest"]
    );
    assert_eq!(required("sessionRequireClientSASLAuth=true\n"), ["sasl"]);
    assert_eq!(required("requireClientAuthScheme=sasl\n"), ["sasl"]);
    let provider = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n";
    assert!(of(provider).unwrap().notes.is_empty());
    for (line, words) in [
        ("enforce.auth.enabled=true", "`enforce.auth.enabled` needs `enforce.auth.schemes`"),
        ("requireClientAuthScheme=kerberos", "`requireClientAuthScheme`: `zookeeper.required_schemes` is"),
        ("enforce.auth.enabled=yes", "`enforce.auth.enabled` is \"yes\"; allowed: true or false"),
        ("authProvider.1=com.reef.Provider", "`authProvider.1` is a class of Java"),
        (
            "sslQuorum=true",
            "`sslQuorum` cannot be done: nodes speak TLS to each other with the files of [tls]",
        ),
        ("quorum.auth.enableSasl=true", "cannot be done: nodes know each other by the certificates of [tls]"),
        ("ssl.crl=true", "`ssl.crl` cannot be done"),
        ("peerType=observer", "`peerType` cannot be done: there are no observers"),
        ("kerberos.removeHostFromPrincipal=true", "Kerberos is not served"),
    ] {
        let told = of(&format!("{line}\n")).expect_err(line).to_string();
        assert!(told.contains("conf/zoo.cfg:3: ") && told.contains(words), "{line}: {told}");
    }
    assert!(of("sslQuorum=false\npeerType=participant\n").unwrap().notes.is_empty());
    // Without users, nobody could come in.
    let nobody = fault_of("dataDir=d\nsessionRequireClientSASLAuth=true\n");
    assert!(
        nobody.contains("zoo.cfg:2: `sessionRequireClientSASLAuth`") && nobody.contains("names nobody"),
        "{nobody}"
    );
    let no_port = fault_of("dataDir=d\nenforce.auth.enabled=true\nenforce.auth.schemes=x509\n");
    assert!(no_port.contains("there is no `listen.zookeeper_tls`"), "{no_port}");
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("server.pem");
    std::fs::write(&pem, "").unwrap();
    let not_asked = fault_of(&format!(
        "dataDir=d\nsecureClientPort=2281\nssl.keyStore.location={}\nssl.clientAuth=none\n\
         enforce.auth.enabled=true\nenforce.auth.schemes=x509\n",
        pem.display()
    ));
    assert!(not_asked.contains("no client is asked for a certificate"), "{not_asked}");
}

#[test]
fn the_servers_may_be_in_a_file_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (file, data) = (dir.path().join("zoo.cfg"), dir.path().join("data"));
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("myid"), "2\n").unwrap();
    std::fs::write(&file, "dataDir=data\nclientPort=2181\ndynamicConfigFile=zoo.cfg.dynamic\n").unwrap();
    let dynamic = dir.path().join("zoo.cfg.dynamic");
    let servers = "server.1=127.0.0.1:2888:3888:participant\nserver.2=127.0.0.2:2888:3888:participant\nversion=100000000\n";
    std::fs::write(&dynamic, servers).unwrap();
    let config = load(&file, &Overrules::default()).unwrap().config;
    assert_eq!((config.id, config.peer.as_str(), config.peers.len()), (2, "127.0.0.2:2888", 2));
    std::fs::write(&dynamic, format!("{servers}tickTime=7\n")).unwrap();
    let told = load(&file, &Overrules::default()).unwrap_err().to_string();
    assert!(
        told.contains("zoo.cfg:3: `dynamicConfigFile`: ") && told.contains("line 4: `tickTime`; allowed"),
        "{told}"
    );
}

#[test]
fn the_users_of_sasl_may_be_in_a_jaas_file() {
    let dir = tempfile::tempdir().unwrap();
    let (file, jaas) = (dir.path().join("zoo.cfg"), dir.path().join("jaas.conf"));
    let lines = "dataDir=data\nclientPort=2181\njava.security.auth.login.config=jaas.conf\nzookeeper.sasl.serverconfig=Reef\n\
                 sessionRequireClientSASLAuth=true\n";
    std::fs::write(&file, lines).unwrap();
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    std::fs::write(&jaas, format!("Reef {{ {module} required user_bob=\"hunter2\"; }};")).unwrap();
    let config = load(&file, &Overrules::default()).unwrap().config;
    assert!(!config.zookeeper_options.sasl_users.is_empty());
    std::fs::write(&jaas, "Reef { com.sun.security.auth.module.Krb5LoginModule required; };").unwrap();
    let told = load(&file, &Overrules::default()).unwrap_err().to_string();
    let expected = format!(
        "zoo.cfg:3: `java.security.auth.login.config`: `zookeeper.jaas`: {}: line 1: Kerberos is not served",
        jaas.display()
    );
    assert!(told.contains(&expected), "{told}");
}

/// A fault names a setting whose value is a secret, and does not repeat it.
#[test]
fn secrets_are_not_repeated() {
    for line in [
        "DigestAuthenticationProvider.superDigest=super:hunter2",
        "DigestAuthenticationProvider.superDigest=super:hunter2\\u00",
        "atoll.zookeeper.sasl_users=[\"hunter2\"]",
    ] {
        let told = fault_of(&format!("dataDir=d\n{line}\n"));
        assert!(told.contains("zoo.cfg:2: ") && !told.contains("hunter2"), "{told}");
    }
}
