//! Mutual TLS: only certificates of the cluster's own authority are accepted, and errors name the file.

use std::path::{Path, PathBuf};

use crate::common::{book, frame, options, outgoing, start};
use atoll_core::{Class, Exchange, Link, NodeId};
use atoll_net::{Net, StartError, Tls, TlsFiles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa, KeyIdMethod,
    KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { folder, issuer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates the files of a node on this machine.
    fn node(&self, id: u32) -> TlsFiles {
        self.files(&["127.0.0.1", &format!("node-{id}")])
    }

    fn files(&self, names: &[&str]) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        let file = names.join(" ");
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(serial(&file));
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let (cert_path, key_path) = (self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        std::fs::write(&cert_path, cert.pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        TlsFiles { ca: self.path("ca.pem"), cert: cert_path, key: key_path, revoked: None, server_name: None }
    }
}

/// The number of the certificate with these names.
fn serial(names: &str) -> SerialNumber {
    SerialNumber::from_slice(&[&[1], names.as_bytes()].concat())
}

impl Authority {
    /// Creates a file in which the certificates with these names are revoked.
    fn revoke(&self, names: &[&str]) -> PathBuf {
        let revoked = |names: &&str| RevokedCertParams {
            serial_number: serial(names),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2020, 2, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: names.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.path("revoked.pem");
        std::fs::write(&path, list.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        path
    }
}

/// The list has expired and still applies: a cluster must not stop because nobody has renewed the list.
#[tokio::test]
async fn a_peer_whose_certificate_is_revoked_stays_out_in_both_directions() {
    let authority = Authority::new();
    let revoked = Some(authority.revoke(&["127.0.0.1 node-1", "127.0.0.1 node-4"]));
    let mut two = options(2, 22);
    two.tls = Some(TlsFiles { revoked: revoked.clone(), ..authority.node(2) });
    let b = start(two).await;
    // Each is a node of its own: nobody waits for the end of another life.
    for (id, list, admitted) in
        [(1, None, false), (3, None, true), (4, revoked.clone(), false), (5, revoked, true)]
    {
        let mut other = options(id, 11);
        other.tls = Some(TlsFiles { revoked: list, ..authority.node(id) });
        b.net.set_peers([(NodeId(id), "127.0.0.1:1".into())].into());
        let mut a = start(other).await;
        a.net.set_peers(book(&[b.at()]));
        if admitted {
            a.until_link(2, Class::Data, Link::Up).await;
        } else {
            while a.net.stats().failed_dials < 3 {
                tokio::task::yield_now().await;
            }
            assert_eq!(a.net.stats().dialed, 0, "node {id}");
        }
    }
    // The one that dials refuses a revoked peer, too.
    let mut three = options(3, 33);
    three.tls =
        Some(TlsFiles { revoked: Some(authority.revoke(&["127.0.0.1 node-2"])), ..authority.node(3) });
    let a = start(three).await;
    a.net.set_peers(book(&[b.at()]));
    while a.net.stats().failed_dials < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(a.net.stats().dialed, 0);
}

#[tokio::test]
async fn nodes_of_one_authority_talk() {
    let authority = Authority::new();
    let (mut one, mut two) = (options(1, 11), options(2, 22));
    one.tls = Some(authority.node(1));
    two.tls = Some(authority.node(2));
    // With TLS, a node may listen on any address.
    two.listen = "0.0.0.0:0".into();
    let (mut a, mut b) = (start(one).await, start(two).await);
    let mut peers = book(&[a.at()]);
    peers.insert(b.id, format!("127.0.0.1:{}", b.at().1.port()));
    a.net.set_peers(peers.clone());
    b.net.set_peers(peers);
    a.until_link(2, Class::Data, Link::Up).await;
    for n in 0..200usize {
        let payload = vec![n as u8; n * 997];
        a.net.send([outgoing(2, Class::Data, Exchange::Post, frame(1, "", vec![payload.into()]))]);
    }
    for n in 0..200usize {
        let (_, _, got) = b.until_frame().await;
        assert!(
            got.frame.payloads[0].iter().all(|b| *b == n as u8) && got.frame.payloads[0].len() == n * 997
        );
    }
}

#[tokio::test]
async fn strangers_without_the_right_certificate_stay_out() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut two = options(2, 22);
    two.tls = Some(ours.node(2));
    let b = start(two).await;
    b.net.set_peers([(NodeId(1), "127.0.0.1:1".into())].into());

    let mut foreign = options(1, 11);
    foreign.tls = Some(theirs.node(1));
    let mut half = theirs.node(1);
    // It trusts the right authority, but its own certificate comes from another one.
    half.ca = ours.path("ca.pem");
    let mut impostor = options(1, 12);
    impostor.tls = Some(half);
    let plain = options(1, 13);
    let mut other_name = options(1, 14);
    other_name.tls = Some(TlsFiles { server_name: Some("elsewhere".into()), ..ours.node(1) });
    for stranger in [foreign, impostor, plain, other_name] {
        let life = stranger.incarnation;
        let a = start(stranger).await;
        a.net.set_peers(book(&[b.at()]));
        while a.net.stats().failed_dials < 3 {
            tokio::task::yield_now().await;
        }
        assert_eq!(a.net.stats().dialed, 0, "life {life}");
    }
    assert!(b.net.stats().failed_tls > 0);
}

/// Certificates of the right authority, but for another node or a client. Their holders must not be admitted as this node.
#[tokio::test]
async fn a_node_is_known_by_its_certificate() {
    let authority = Authority::new();
    let mut two = options(2, 22);
    two.tls = Some(authority.node(2));
    let b = start(two).await;
    b.net.set_peers([(NodeId(1), "127.0.0.1:1".into())].into());
    for names in [&["node-3"][..], &["127.0.0.1"]] {
        let files = authority.files(names);
        let answer = introduce_as_one(&b, &files).await;
        let text = String::from_utf8_lossy(&answer);
        assert_eq!((answer[10], answer[16]), (1, 7), "refused for its certificate: {text}");
        assert!(text.contains("without the name \"node-1\""), "{text}");
    }
    let answer = introduce_as_one(&b, &authority.node(1)).await;
    assert_eq!(answer[10], 0, "its own certificate lets it in");
}

/// Says hello to `b` as node 1 over TLS with these files, and returns the first answer.
async fn introduce_as_one(b: &crate::common::Node, files: &TlsFiles) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let chain = vec![CertificateDer::from_pem_file(&files.cert).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
    let ring = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let tcp = tokio::net::TcpStream::connect(b.net.local_addr()).await.unwrap();
    let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), tcp).await.unwrap();
    stream.write_all(&crate::common::hello(2, "reef", 1, 2, 11)).await.unwrap();
    let mut answer = vec![0; 16];
    tokio::time::timeout(crate::common::PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    let mut body = vec![0; usize::from(answer[12]) + (usize::from(answer[13]) << 8)];
    tokio::time::timeout(crate::common::PATIENCE, stream.read_exact(&mut body)).await.unwrap().unwrap();
    answer.extend(body);
    answer
}

#[tokio::test]
async fn garbage_on_a_tls_port_does_no_harm() {
    let authority = Authority::new();
    let mut two = options(2, 22);
    two.tls = Some(authority.node(2));
    let b = start(two).await;
    let mut stream = tokio::net::TcpStream::connect(b.net.local_addr()).await.unwrap();
    stream.write_all(&[0x16, 3, 1, 255, 255, 0, 0, 0]).await.unwrap();
    stream.write_all(&[7; 4000]).await.unwrap();
    stream.shutdown().await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert_eq!(b.net.stats().failed_tls, 1);
}

fn error_of(files: &TlsFiles) -> String {
    match Tls::load(files, NodeId(1)) {
        Ok(_) => panic!("loaded"),
        Err(e) => e.to_string(),
    }
}

#[tokio::test]
async fn errors_name_the_file() {
    let authority = Authority::new();
    let good = authority.node(1);
    assert!(Tls::load(&good, NodeId(1)).is_ok());
    let names = |text: String, path: &Path| assert!(text.contains(&path.display().to_string()), "{text}");
    for stranger in [authority.files(&["127.0.0.1"]), authority.node(2)] {
        names(error_of(&stranger), &stranger.cert);
        assert!(error_of(&stranger).contains("\"node-1\""));
    }

    let missing = authority.path("missing.pem");
    names(error_of(&TlsFiles { ca: missing.clone(), ..good.clone() }), &missing);
    names(error_of(&TlsFiles { cert: missing.clone(), ..good.clone() }), &missing);
    names(error_of(&TlsFiles { key: missing.clone(), ..good.clone() }), &missing);
    let garbage = authority.path("garbage.pem");
    std::fs::write(&garbage, "no PEM at all").unwrap();
    names(error_of(&TlsFiles { ca: garbage.clone(), ..good.clone() }), &garbage);
    names(error_of(&TlsFiles { key: garbage.clone(), ..good.clone() }), &garbage);
    let broken = authority.path("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    names(error_of(&TlsFiles { ca: broken.clone(), ..good.clone() }), &broken);
    for not_a_list in [&missing, &garbage, &authority.path("ca.pem"), &broken] {
        names(error_of(&TlsFiles { revoked: Some(not_a_list.clone()), ..good.clone() }), not_a_list);
    }
    let damaged = authority.path("damaged.pem");
    std::fs::write(&damaged, "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n").unwrap();
    names(error_of(&TlsFiles { revoked: Some(damaged.clone()), ..good.clone() }), &damaged);
    // The key belongs to another certificate.
    let other = authority.node(2);
    names(error_of(&TlsFiles { key: other.key.clone(), ..good.clone() }), &other.key);
    assert!(
        error_of(&TlsFiles { server_name: Some("no name!".into()), ..good.clone() }).contains("no name!")
    );

    let mut o = options(1, 11);
    o.tls = Some(TlsFiles { ca: missing.clone(), ..good });
    match Net::start(o).await {
        Err(StartError::Tls(e)) => names(e.to_string(), &missing),
        other => panic!("{:?}", other.err()),
    }
}
