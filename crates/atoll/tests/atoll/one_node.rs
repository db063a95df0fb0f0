//! `atoll serve --data DIR`: a useful log on one node, across kills and restarts.

use crate::support::{atoll, free_port, ok, serve, verb};

#[test]
fn what_was_acknowledged_survives_kills() {
    let dir = tempfile::tempdir().unwrap();
    let (data, port) = (dir.path().join("data"), free_port());
    let connect = format!("127.0.0.1:{port}");
    for round in 0..3 {
        let mut node = serve(&data, port);
        for n in 0..20 {
            let position = ok(&connect, &["log", "append", &format!("record {round} {n}")]);
            assert_eq!(position.trim(), (20 * round + n).to_string());
        }
        node.signal("KILL");
        node.ended();
    }
    let mut node = serve(&data, port);
    let expected: String = (0..3).flat_map(|r| (0..20).map(move |n| format!("record {r} {n}\n"))).collect();
    assert_eq!(ok(&connect, &["log", "read", "--raw"]), expected);
    assert_eq!(ok(&connect, &["log", "read", "--raw", "--local-only"]), expected);
    assert_eq!(ok(&connect, &["log", "check-tail"]).trim(), "60");

    node.signal("TERM");
    assert!(node.ended().success(), "SIGTERM ends in good order");
    // On a port where nobody listens, a verb fails with an error that says so, instead of waiting forever.
    let out = verb(&connect, &["log", "append", "nobody", "--timeout", "1"]);
    assert!(!out.status.success());
}

#[test]
fn a_data_folder_belongs_to_one_process_and_one_node() {
    let dir = tempfile::tempdir().unwrap();
    let (data, port) = (dir.path().join("data"), free_port());
    let mut node = serve(&data, port);
    let doors =
        ["--grpc", "127.0.0.1:0", "--peer", "127.0.0.1:0", "--metrics", "", "--zookeeper", "127.0.0.1:0"];
    let second = atoll().arg("serve").arg("--data").arg(&data).args(doors).output().unwrap();
    let words = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && words.contains(&data.display().to_string()), "{words}");
    node.signal("KILL");
    node.ended();

    let config = dir.path().join("other.toml");
    std::fs::write(&config, "[node]\nid = 7\ndata = \"data\"\n").unwrap();
    let other = atoll().arg("serve").arg("--config").arg(&config).args(doors).output().unwrap();
    let words = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(!other.status.success() && words.contains("node 7") && words.contains("node 1"), "{words}");
}

#[test]
fn a_wrong_configuration_ends_with_status_2_and_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("node.toml");
    std::fs::write(&config, "[node]\ndata = \"data\"\nid = 0\n\n[listen]\ngrpc = \"0.0.0.0:7411\"\n")
        .unwrap();
    for check in [&["--check"][..], &[]] {
        let out = atoll().arg("serve").arg("--config").arg(&config).args(check).output().unwrap();
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(2), "{words}");
        assert!(words.contains("node.toml:3: `node.id` is 0"), "{words}");
        assert!(words.contains("node.toml:6: `listen.grpc`") && words.contains("TLS"), "{words}");
    }
    assert!(!dir.path().join("data").exists());

    let printed = atoll().args(["serve", "--print-config"]).output().unwrap();
    std::fs::write(&config, printed.stdout).unwrap();
    let out =
        atoll().arg("serve").arg("--config").arg(&config).args(["--data", "x", "--check"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_byte_goes_to_another_process_and_back() {
    let out = atoll().args(["bench", "ping-pong", "--seconds", "0.1", "--json"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(report["round_trips"].as_u64().unwrap() > 10, "{report}");
    let (p50, max) = (report["p50_us"].as_f64().unwrap(), report["max_us"].as_f64().unwrap());
    assert!(0.0 < p50 && p50 <= max, "{report}");
}
