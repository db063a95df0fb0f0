#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use super::config::{Config, Overrules, Roles};
use super::settings::{LISTS, SECTIONS, SETTINGS, print};

fn over() -> Overrules {
    Overrules { data: Some("d".into()), ..Overrules::default() }
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("etc/node.toml"), text, &over()).map_err(|f| f.to_string())
}

fn fault_of(text: &str) -> String {
    parse(text).expect_err(text)
}

#[test]
fn the_printed_configuration_is_the_default() {
    let printed = Config::parse(Path::new("command line"), &print(), &over()).unwrap();
    assert_eq!(printed, Config::without_file(&over()).unwrap());
    for s in SETTINGS {
        assert!(SECTIONS.iter().any(|(name, _)| *name == s.section), "{}", s.name());
        assert!(print().contains(&format!("{} = ", s.key)), "{}", s.name());
    }
}

#[test]
fn what_is_off_in_the_print_is_right_once_it_is_on() {
    // `#key = value` without a space is a setting, `# words` is prose.
    let on: String = print()
        .lines()
        .map(|l| l.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(l).to_owned() + "\n")
        .collect();
    // Only the files are at fault: they do not exist.
    let faults = fault_of(&on);
    let lines: Vec<&str> = faults.lines().collect();
    assert_eq!(lines.len(), 9, "{faults}");
    let is_file =
        |l: &&str| (l.contains("tls") && l.contains("PEM file")) || l.contains("`zookeeper.jaas`: ");
    assert!(lines.iter().all(is_file), "{faults}");
}

#[test]
fn every_setting_refuses_a_wrong_value_with_its_name_line_and_what_is_allowed() {
    for setting in SETTINGS {
        let mut wrongs = vec!["1979-05-27", "-1", "[[1]]", "\"\\u0001\"", "[\"queen\"]", "1.5"];
        if setting.default == Some("false") {
            wrongs.extend(["1", "\"true\""]);
        }
        for wrong in wrongs {
            let section = setting.section;
            let head =
                if LISTS.contains(&section) { format!("[[{section}]]") } else { format!("[{section}]") };
            let text = format!("# a comment\n\n{head}\n{} = {wrong}\n", setting.key);
            // `--data` overrides the setting of the file, which must not hide the fault here.
            let none = Overrules::default();
            let faults = Config::parse(Path::new("etc/node.toml"), &text, &none).unwrap_err().to_string();
            let place = format!("etc/node.toml:4: `{}` is ", setting.name());
            let line = faults.lines().find(|l| l.starts_with(&place));
            let line = line.unwrap_or_else(|| panic!("{} = {wrong}: {faults}", setting.name()));
            assert!(line.ends_with(&format!("allowed: {}", setting.allowed)), "{line}");
        }
    }
}

#[test]
fn bounds_are_in() {
    assert!(parse("[node]\nid = 1").is_ok());
    assert!(parse("[node]\nid = 4294967295").is_ok());
    assert!(fault_of("[node]\nid = 0").contains(":2: `node.id` is 0;"));
    assert!(fault_of("[node]\nid = 4294967296").contains("`node.id` is 4294967296;"));
    assert!(fault_of("[node]\nid = 99999999999999999999999").contains("`node.id`"));
    assert!(parse("[timings]\nlink_down_for_ms = 1").is_ok());
    assert!(fault_of("[timings]\nlink_down_for_ms = 60001").contains("allowed: an integer, 1 to 60000"));
    let late = fault_of("[timings]\nheartbeat_every_ms = 200");
    assert!(late.contains(":2: ") && late.contains("a third"), "{late}");
    assert!(parse(&format!("[node]\ncluster = \"{}\"", "a".repeat(64))).is_ok());
    assert!(fault_of(&format!("[node]\ncluster = \"{}\"", "a".repeat(65))).contains("`node.cluster`"));
}

#[test]
fn session_timeouts_come_from_the_tick_unless_they_are_given() {
    let timeouts = |text: &str| {
        let o = parse(text).unwrap().zookeeper_options;
        (o.min_session_timeout_ms, o.max_session_timeout_ms)
    };
    assert_eq!(timeouts(""), (4_000, 40_000));
    assert_eq!(timeouts("[zookeeper]\ntick_ms = 3000"), (6_000, 60_000));
    assert_eq!(timeouts("[zookeeper]\ntick_ms = 100"), (1_000, 2_000));
    assert_eq!(timeouts("[zookeeper]\nmin_session_timeout_ms = 1000"), (1_000, 40_000));
    let f = fault_of("[zookeeper]\nmin_session_timeout_ms = 50000");
    assert!(f.contains(":2: ") && f.contains("comes to 50000") && f.contains("to 40000"), "{f}");
    let f = fault_of("[zookeeper]\nmin_session_timeout_ms = 999");
    assert!(f.contains("allowed: 0 for two ticks, or an integer, 1000 to 3600000"), "{f}");
}

#[test]
fn options_of_the_zookeeper_door_are_checked() {
    let defaults = parse("").unwrap().zookeeper_options;
    assert_eq!(defaults, atoll_doors::zookeeper::Options::default());
    let given = parse("[zookeeper]\nconnection_tokens = 7\nwords = [\"*\"]\nmax_connections = 9").unwrap();
    assert_eq!(given.zookeeper_options.connection_throttle.unwrap().tokens, 7);
    assert_eq!((given.zookeeper_options.words.len(), given.zookeeper_options.max_connections), (1, 9));
    for wrong in
        ["super", "super:", ":xQJmxLMiHGwaqBvst5y6rkB6HQs=", "super:xQJmxLMiHGwaqBvst5y6rkB6HQ==", "super:x"]
    {
        let f = fault_of(&format!("[zookeeper]\nsuper_digest = \"{wrong}\""));
        assert!(f.contains(":2: `zookeeper.super_digest` is "), "{f}");
    }
    let f = fault_of("[zookeeper]\nsasl_users = [\"bob:hunter2\", \"bob:hunter3\"]");
    assert!(f.contains(":2: `zookeeper.sasl_users` is not shown") && !f.contains("hunter"), "{f}");
    assert_eq!(parse("[zookeeper]\nwords = \"*\"").unwrap().zookeeper_options.words, ["*"]);
    let f = fault_of("[zookeeper]\nrequired_schemes = [\"ip\"]");
    assert!(f.contains(":2: `zookeeper.required_schemes` is [\"ip\"]; allowed: a list of"), "{f}");
    assert!(parse("[zookeeper]\nenforce_quota = true").unwrap().zookeeper_options.enforce_quota);
    let f = fault_of("[zookeeper]\nenforce_quota = 1");
    assert!(f.contains("`zookeeper.enforce_quota` is"), "{f}");
    let f = fault_of("[zookeeper]\nwords = [\"ruok\", \"kill\"]");
    assert!(f.contains("`zookeeper.words` is"), "{f}");
}

#[test]
fn what_is_unknown_is_refused_with_what_is_known() {
    let f = fault_of("[node]\nident = 3");
    assert!(f.contains(":2: unknown setting `node.ident`; known are cluster, data, id, roles"), "{f}");
    assert!(fault_of("[nodes]\nid = 3").contains(":1: unknown table or setting `nodes`"));
    assert!(fault_of("node = 3").contains("write `[node]`"));
    assert!(fault_of("[peer]\nid = 3").contains("write `[[peer]]`"));
    let f = fault_of("[node]\nid = = 3");
    assert!(f.starts_with("etc/node.toml:2: this is not TOML"), "{f}");
    assert!(fault_of("[node]\nid = 1\nid = 2").contains(":3: "));
}

#[test]
fn all_faults_come_at_once_in_the_order_of_the_file() {
    let f = fault_of("[listen]\ngrpc = \"nowhere\"\n[node]\nid = 0\nroles = [\"log\", \"log\"]\n");
    let lines: Vec<&str> = f.lines().collect();
    assert_eq!(lines.len(), 3, "{f}");
    assert!(
        lines[0].contains(":2: `listen.grpc`") && lines[1].contains(":4: ") && lines[2].contains(":5: "),
        "{f}"
    );
}

#[test]
fn data_must_be_given() {
    let none = Overrules::default();
    let f = Config::parse(Path::new("etc/node.toml"), "[node]\nid = 2", &none).unwrap_err().to_string();
    assert!(f.contains("`node.data` is missing"), "{f}");
    let c = Config::parse(Path::new("etc/node.toml"), "[node]\ndata = \"d\"", &none).unwrap();
    assert_eq!(c.data, PathBuf::from("etc/d"));
    let c = Config::parse(Path::new("etc/node.toml"), "[node]\ndata = \"/d\"", &none).unwrap();
    assert_eq!(c.data, PathBuf::from("/d"));
}

#[test]
fn doors_beyond_loopback_need_tls_or_the_words() {
    for (door, beyond) in [
        ("127.0.0.1:1", false),
        ("127.9.9.9:0", false),
        ("[::1]:7411", false),
        ("0.0.0.0:7411", true),
        ("[::]:7411", true),
        ("192.0.2.1:7411", true),
    ] {
        for key in ["grpc", "peer", "metrics", "zookeeper"] {
            let text = format!("[listen]\n{key} = \"{door}\"\n");
            let without = parse(&text);
            assert_eq!(without.is_err(), beyond, "{key} {door}");
            if let Err(f) = without {
                assert!(f.contains(":2: ") && f.contains("listen_beyond_loopback_without_tls"), "{f}");
            }
            assert!(parse(&format!("{text}listen_beyond_loopback_without_tls = true\n")).is_ok());
        }
    }
    let over = Overrules { grpc: Some("0.0.0.0:1".into()), ..over() };
    assert!(Config::without_file(&over).is_err());
}

#[test]
fn tls_is_three_files_that_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    for name in ["ca.pem", "node.pem", "node.key"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let full = "[listen]\ngrpc = \"0.0.0.0:7411\"\n[tls]\nca = \"ca.pem\"\ncert = \"node.pem\"\nkey = \"node.key\"\n";
    let config = Config::parse(&file, full, &over()).unwrap();
    assert_eq!(config.tls.unwrap().ca, dir.path().join("ca.pem"));
    assert_eq!(config.zookeeper_tls, None);
    let with_lists = format!("{full}revoked = \"ca.pem\"\n");
    let config = Config::parse(&file, &with_lists, &over()).unwrap();
    assert_eq!(config.tls.unwrap().revoked, Some(dir.path().join("ca.pem")));
    let with_zookeeper = with_lists.replace("[listen]\n", "[listen]\nzookeeper_tls = \"127.0.0.1:2281\"\n");
    let lists_of = |zookeeper: &str| {
        let text = format!("{with_zookeeper}[zookeeper]\n{zookeeper}");
        Config::parse(&file, &text, &over()).unwrap().zookeeper_tls.unwrap().1.revoked
    };
    // Those of [tls] are of its authority.
    assert_eq!(lists_of(""), Some(dir.path().join("ca.pem")));
    assert_eq!(lists_of("tls_ca = \"node.pem\"\n"), None);
    assert_eq!(lists_of("tls_revoked = \"node.key\"\n"), Some(dir.path().join("node.key")));
    let f = Config::parse(&file, &with_lists.replace("revoked = \"ca", "revoked = \"gone"), &over());
    assert!(f.unwrap_err().to_string().contains(":7: `tls.revoked` is \"gone.pem\""));
    let f = Config::parse(&file, &full.replace("key = \"node.key\"\n", ""), &over()).unwrap_err().to_string();
    assert!(f.contains("`tls.key` is missing"), "{f}");
    let f = Config::parse(&file, &full.replace("node.pem", "gone.pem"), &over()).unwrap_err().to_string();
    assert!(f.contains(":5: `tls.cert` is \"gone.pem\""), "{f}");
}

#[test]
fn peers_are_members_with_an_address_each() {
    let two = "[[peer]]\nid = 2\naddress = \"reef:7412\"\n[[peer]]\nid = 3\naddress = \"[::1]:7412\"\nroles = [\"log\"]\n";
    let config = parse(two).unwrap();
    assert_eq!(config.peers.len(), 2);
    assert_eq!(config.peers[&3].roles, Roles { log: true, meta: false, sequencer: false });
    assert!(fault_of(&two.replace("id = 3", "id = 2")).contains(":5: `peer.id` is 2 a second time"));
    assert!(fault_of(&two.replace("id = 2\n", "")).contains("`peer.id` is missing"));
    assert!(fault_of(&two.replace("reef:7412", "reef:0")).contains(":3: `peer.address`"));
    let me = format!("{two}[[peer]]\nid = 1\naddress = \"a:1\"\nroles = [\"log\"]\n");
    let f = fault_of(&me);
    assert!(f.contains(":9: `peer.roles` of peer 1 is [\"log\"]"), "{f}");
    let f = fault_of("[node]\nroles = [\"log\"]\n");
    assert!(f.contains(":2: no member has the role \"meta\""), "{f}");
    let many: String = (2..80).map(|i| format!("[[peer]]\nid = {i}\naddress = \"a:1\"\n")).collect();
    assert!(fault_of(&many).contains("more than 64"));
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let f = Config::load(Path::new("no/such.toml"), &over()).unwrap_err().to_string();
    assert!(f.starts_with("no/such.toml: cannot be read"), "{f}");
    let f = Config::parse(Path::new("n"), &format!("a = \"{}", "x".repeat(5_000)), &over()).unwrap_err();
    assert!(f.to_string().len() < 1_000, "{f}");
}
