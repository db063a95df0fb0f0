//! TLS and SASL over real sockets: which clients are admitted under which ids, and that all others are refused and counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use super::client::Client;
use super::served::{door_with, figure};
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::records::ConnectRequest;
use atoll_zookeeper::jute::reply::WhoAmIReply;
use atoll_zookeeper::jute::request::{Request, SaslRequest};
use atoll_zookeeper::{ClientCertificates, Options, TlsFiles, Users};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa,
    Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Creates an authority, a door's certificate and a client's, as PEM files.
fn certificates(dir: &Path) {
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    write("ca.pem", authority.self_signed(&key).unwrap().pem());
    let issuer = Issuer::new(authority, key);
    for name in ["localhost", "client"] {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Reef");
        params.distinguished_name.push(DnType::CommonName, name);
        params.serial_number = Some(SerialNumber::from_slice(name.as_bytes()));
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.pem"), params.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    for name in ["nobody", "client"] {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from_slice(name.as_bytes()),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2020, 2, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        write(&format!("without-{name}.pem"), list.signed_by(&issuer).unwrap().pem().unwrap());
    }
}

#[test]
fn a_client_whose_certificate_is_revoked_stays_out() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    for (list, admitted) in [("without-nobody.pem", true), ("without-client.pem", false)] {
        let all = files(dir.path(), ClientCertificates::Want);
        let files = TlsFiles { revoked: Some(dir.path().join(list)), ..all };
        let (_, tls) = door_with(Options::default(), Some(&files));
        assert_eq!(handshake(dir.path(), tls, true).is_ok(), admitted, "{list}");
        // Whoever shows no certificate has none that is revoked.
        assert!(handshake(dir.path(), tls, false).is_ok());
    }
}

fn files(dir: &Path, clients: ClientCertificates) -> TlsFiles {
    TlsFiles {
        cert: dir.join("localhost.pem"),
        key: dir.join("localhost.key"),
        ca: dir.join("ca.pem"),
        revoked: None,
        clients,
    }
}

/// Connects over TLS, with or without the client's certificate, and opens a session; returns the reply to whoAmI.
fn handshake(dir: &Path, door: SocketAddr, with_certificate: bool) -> std::io::Result<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.pem")).unwrap()).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = if with_certificate {
        let chain = vec![CertificateDer::from_pem_file(dir.join("client.pem")).unwrap()];
        builder
            .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(dir.join("client.key")).unwrap())
            .unwrap()
    } else {
        builder.with_no_client_auth()
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, Client::socket(door));
    let first = ConnectRequest::first(10_000).to_vec();
    exchange(&mut stream, &first)?;
    // whoAmI
    exchange(&mut stream, &[1_i32.to_be_bytes(), 107_i32.to_be_bytes()].concat())
}

fn exchange(stream: &mut StreamOwned<ClientConnection, TcpStream>, frame: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = i32::try_from(frame.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length[..], frame].concat())?;
    stream.flush()?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

fn ids(answer: &[u8]) -> Vec<(String, String)> {
    let told = WhoAmIReply::parse(&answer[16..]).unwrap();
    told.clients.iter().map(|c| (c.scheme.to_owned(), c.id.to_owned())).collect()
}

#[test]
fn a_client_is_who_its_certificate_says_and_comes_in_only_with_one() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let super_of = Some("CN=client,O=Reef".to_owned());
    let options = Options { x509_super: super_of, ..Options::default() };
    let (plain, tls) = door_with(options, Some(&files(dir.path(), ClientCertificates::Need)));
    let known = ids(&handshake(dir.path(), tls, true).unwrap());
    let has = |scheme: &str, id: &str| known.iter().any(|(s, i)| s == scheme && i == id);
    assert!(has("ip", "127.0.0.1") && has("x509", "CN=client,O=Reef") && has("super", ""), "{known:?}");
    assert!(handshake(dir.path(), tls, false).is_err());
    // A client that does not use TLS learns nothing.
    let mut bare = Client::socket(tls);
    bare.write_all(b"ruok").unwrap();
    bare.shutdown(std::net::Shutdown::Write).unwrap();
    let mut told = Vec::new();
    let _ = bare.read_to_end(&mut told);
    assert!(!told.windows(4).any(|w| w == b"imok"), "{told:?}");
    assert_eq!(figure(plain, "zk_tls_handshake_failures"), 2.0);
}

#[test]
fn a_client_that_need_not_show_a_certificate_is_known_by_its_address() {
    let dir = tempfile::tempdir().unwrap();
    certificates(dir.path());
    let (_, tls) = door_with(Options::default(), Some(&files(dir.path(), ClientCertificates::Want)));
    let known = ids(&handshake(dir.path(), tls, false).unwrap());
    assert_eq!(known, [("ip".to_owned(), "127.0.0.1".to_owned())]);
    assert_eq!(ids(&handshake(dir.path(), tls, true).unwrap()).len(), 2);
}

#[test]
fn a_wrong_response_of_sasl_ends_the_connection_and_is_counted() {
    let users = Users::new([("bob".to_owned(), "secret".to_owned())]);
    let (plain, _) = door_with(Options { sasl_users: users, ..Options::default() }, None);
    let mut c = Client::connect(plain);
    let (err, challenge) = c.call(&Request::Sasl(SaslRequest { token: Some(b"") }));
    let challenge = String::from_utf8_lossy(&challenge[4..]).into_owned();
    assert_eq!(err, 0);
    let nonce = challenge.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(nonce.len(), 48, "{challenge}");
    let wrong = format!(
        "username=\"bob\",realm=\"zk-sasl-md5\",nonce=\"{nonce}\",nc=00000001,cnonce=\"x\",\
         digest-uri=\"zookeeper/zk-sasl-md5\",response={},qop=auth",
        "0".repeat(32)
    );
    let (err, body) = c.call(&Request::Sasl(SaslRequest { token: Some(wrong.as_bytes()) }));
    assert_eq!((err, body.as_slice()), (ErrorCode::AuthFailed.number(), &[0xff; 4][..]));
    assert!(c.is_ended());
    assert_eq!(figure(plain, "zk_auth_failed_count"), 1.0);
    // The next exchange has another nonce. A door without users offers no SASL.
    let mut again = Client::connect(plain);
    let (_, other) = again.call(&Request::Sasl(SaslRequest { token: None }));
    assert!(!String::from_utf8_lossy(&other).contains(nonce));
    let mut none = Client::connect(door_with(Options::default(), None).0);
    assert_eq!(none.call(&Request::Sasl(SaslRequest { token: None })).0, ErrorCode::Unimplemented.number());
}
