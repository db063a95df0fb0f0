//! Every method of the API, tried with a certificate, with a token, and with neither: it needs exactly the right that the table of methods
//! says (decision 0028).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::memory::{MemoryNode, gated_services};
use atoll_auth::{Grant, Kind, METHODS, Method, Needs, Policy, Right, Token, hash_of};
use atoll_client::proto::append_stream_request::{Open, What};
use atoll_client::{keyspace_proto, proto};
use atoll_contract::LogPos;
use atoll_door::{Audit, Certificates, DoorTls, Gate, Limits, serve_grpc};
use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use prost_types::FileDescriptorSet;
use prost_types::field_descriptor_proto::Type;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::TcpListener;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

/// What the requests name.
const NAME: &str = "thing";
const TOKEN: &str = "atoll_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Messages as bytes.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap()
}

/// Returns the input message of each method, by its path.
fn inputs() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for file in descriptors().file {
        let package = file.package().to_owned();
        for service in &file.service {
            for method in &service.method {
                let path = format!("{package}.{}/{}", service.name(), method.name());
                found.insert(path, method.input_type().trim_start_matches('.').to_owned());
            }
        }
    }
    found
}

/// Returns the number of the field by which a message names what it is about.
fn name_field(message: &str) -> Option<i32> {
    let files = descriptors().file;
    let mut messages =
        files.iter().flat_map(|file| file.message_type.iter().map(move |m| (file.package(), m)));
    let (_, found) = messages.find(|(package, m)| format!("{package}.{}", m.name()) == message)?;
    let named = |name: &&str| found.field.iter().find(|f| f.name() == *name && f.r#type() == Type::String);
    ["log", "table", "keyspace", "name"].iter().find_map(named).map(|field| field.number())
}

/// Returns a request of a method about [`NAME`], and the right that it needs, if it needs one.
fn request(method: &Method, inputs: &BTreeMap<String, String>) -> Vec<u8> {
    match method.path {
        "atoll.v1.LogService/AppendStream" => {
            let open = Open { log: NAME.into(), client: 7, ..Open::default() };
            proto::AppendStreamRequest { what: Some(What::Open(open)) }.encode_to_vec()
        }
        "atoll.v1.TableService/CreateTable" => {
            let table = proto::Table { name: NAME.into(), ..Default::default() };
            proto::CreateTableRequest { table: Some(table), ..Default::default() }.encode_to_vec()
        }
        "atoll.v1.TableService/Transact" => transaction(proto::operation::Action::Read(Default::default())),
        "atoll.keyspace.v1.KeyspaceService/Operate" => {
            let get = keyspace_proto::GetRequest { keyspace: NAME.into(), ..Default::default() };
            operation(keyspace_proto::operate_request::operation::What::Get(get))
        }
        path => {
            let input = inputs.get(path);
            let field = input.and_then(|input| name_field(input)).filter(|_| method.needs.kind().is_some());
            assert_eq!(field.is_some(), method.needs.kind().is_some(), "{path}: which field has the name?");
            field.map_or_else(Vec::new, |field| {
                let mut out = vec![u8::try_from(field << 3 | 2).unwrap(), u8::try_from(NAME.len()).unwrap()];
                out.extend(NAME.as_bytes());
                out
            })
        }
    }
}

fn transaction(action: proto::operation::Action) -> Vec<u8> {
    let operation = proto::Operation { table: NAME.into(), action: Some(action) };
    proto::TransactRequest { operations: vec![operation], ..Default::default() }.encode_to_vec()
}

fn operation(what: keyspace_proto::operate_request::operation::What) -> Vec<u8> {
    let operation = keyspace_proto::operate_request::Operation { number: 1, what: Some(what) };
    keyspace_proto::OperateRequest { operations: vec![operation] }.encode_to_vec()
}

/// A listener with TLS, and clients of it.
struct Door {
    gate: Arc<Gate>,
    version: u64,
    certified: Channel,
    anonymous: Channel,
}

impl Door {
    async fn open(audit: Audit) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
        };
        let ((certificate, key), ca) = (issue("node-1"), authority.pem());
        let (certificate, key) = (certificate.as_bytes(), key.as_bytes());
        let tls =
            DoorTls::with_certificates(certificate, key, ca.as_bytes(), Certificates::Optional).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let gate = Gate::new(true, BTreeSet::from(["root".to_owned()]), audit);
        let node = Arc::new(MemoryNode { id: 1, has_keyspaces: true, ..MemoryNode::default() });
        let services = gated_services(node, Limits::default(), gate.clone());
        let never = std::future::pending();
        tokio::spawn(async move { serve_grpc(listener, services, Some(tls), never).await.unwrap() });
        let (certificate, key) = issue("alice");
        Door {
            gate,
            version: 0,
            certified: connect(address, &ca, Some(Identity::from_pem(certificate, key))).await,
            anonymous: connect(address, &ca, None).await,
        }
    }

    /// Grants exactly this.
    fn grant(&mut self, grants: &[(&str, Right, &str)]) {
        let grant = |(who, right, on): &(&str, Right, &str)| Grant {
            who: who.parse().unwrap(),
            on: on.parse().unwrap(),
            right: *right,
        };
        let token = Token { name: "ci".into(), hash: hash_of(TOKEN), created_ms: 1 };
        self.version += 1;
        let policy = Policy::new(&grants.iter().map(grant).collect::<Vec<_>>(), &[token]);
        self.gate.publish(LogPos(self.version), policy);
    }

    /// Makes a call. Returns why it was refused, or "admitted", whatever became of it then.
    async fn call(&self, path: &str, body: Vec<u8>, shows: Shows) -> String {
        let channel = if shows == Shows::Certificate { &self.certified } else { &self.anonymous };
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let mut request = Request::new(tokio_stream::once(body));
        let token = match shows {
            Shows::Token => Some(TOKEN),
            Shows::WrongToken => Some("atoll_00"),
            _ => None,
        };
        if let Some(token) = token {
            request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let to = PathAndQuery::try_from(format!("/{path}")).unwrap();
        let replies = match grpc.streaming(request, to, Raw).await {
            Ok(replies) => replies,
            Err(status) => return reason(&status),
        };
        // These two learn from a message what it is about. All others refuse before they say anything.
        match path {
            "atoll.v1.LogService/AppendStream" => match replies.into_inner().message().await {
                Ok(_) => "admitted".to_owned(),
                Err(status) => reason(&status),
            },
            "atoll.keyspace.v1.KeyspaceService/Operate" => {
                let reply = replies.into_inner().message().await.unwrap().unwrap();
                let reply = keyspace_proto::OperateReply::decode(reply).unwrap();
                match &reply.answers[0].outcome {
                    Some(keyspace_proto::operate_reply::answer::Outcome::Failed(failed)) => {
                        words(&failed.reason)
                    }
                    _ => "admitted".to_owned(),
                }
            }
            _ => "admitted".to_owned(),
        }
    }
}

fn reason(status: &Status) -> String {
    words(status.metadata().get("atoll-reason").and_then(|word| word.to_str().ok()).unwrap_or_default())
}

fn words(reason: &str) -> String {
    match reason {
        refused @ ("unauthenticated" | "not-allowed") => refused.to_owned(),
        _ => "admitted".to_owned(),
    }
}

async fn connect(address: SocketAddr, ca: &str, identity: Option<Identity>) -> Channel {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name("127.0.0.1");
    if let Some(identity) = identity {
        tls = tls.identity(identity);
    }
    Endpoint::from_shared(format!("https://{address}"))
        .unwrap()
        .tls_config(tls)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// What a client shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    Certificate,
    Token,
    WrongToken,
    Nothing,
}

const ADMITTED: &str = "admitted";
const NOT_ALLOWED: &str = "not-allowed";

/// Returns what a method is about, as a grant names it.
fn about(needs: Needs) -> String {
    needs.kind().map_or_else(|| "cluster".to_owned(), |kind| format!("{}:{NAME}", kind.word()))
}

/// Returns grants that must not suffice: the next lower right on it, and all rights on everything else.
fn others(right: Right, needs: Needs) -> Vec<(Right, String)> {
    let mut out: Vec<_> = match right {
        Right::Read => vec![],
        Right::Write => vec![(Right::Read, about(needs))],
        Right::Operate => vec![(Right::Write, about(needs))],
    };
    for kind in [Kind::Log, Kind::Table, Kind::Keyspace] {
        match needs.kind() == Some(kind) {
            true => out.extend([
                (Right::Operate, format!("{}:{NAME}2", kind.word())),
                (Right::Operate, format!("{}:t", kind.word())),
            ]),
            false => out.push((Right::Operate, format!("{}:*", kind.word()))),
        }
    }
    if needs.kind().is_some() {
        out.push((Right::Operate, "cluster".to_owned()));
    }
    out
}

async fn try_row(door: &mut Door, path: &str, body: &[u8], needs: Needs, right: Option<Right>) {
    let all = [("cert:alice", Shows::Certificate), ("token:ci", Shows::Token)];
    door.grant(&[("any", Right::Operate, "*")]);
    for nobody in [Shows::Nothing, Shows::WrongToken] {
        assert_eq!(door.call(path, body.to_vec(), nobody).await, "unauthenticated", "{path}: {nobody:?}");
    }
    let Some(right) = right else {
        door.grant(&[]);
        for (who, shows) in all {
            assert_eq!(
                door.call(path, body.to_vec(), shows).await,
                ADMITTED,
                "{path}: {who}, without a grant"
            );
        }
        return;
    };
    for (who, shows) in all {
        let other = all.iter().map(|(other, _)| *other).find(|other| *other != who).unwrap();
        // Whatever others may do.
        door.grant(&[(other, Right::Operate, "*")]);
        assert_eq!(
            door.call(path, body.to_vec(), shows).await,
            NOT_ALLOWED,
            "{path}: {who}, without a grant"
        );
        for (right, on) in others(right, needs) {
            door.grant(&[(who, right, &on)]);
            let said = door.call(path, body.to_vec(), shows).await;
            assert_eq!(said, NOT_ALLOWED, "{path}: {who} with {right} {on}");
        }
        door.grant(&[(who, right, &about(needs))]);
        let said = door.call(path, body.to_vec(), shows).await;
        assert_eq!(said, ADMITTED, "{path}: {who} with {right} {}", about(needs));
    }
}

#[tokio::test]
async fn each_method_needs_its_right_and_no_other() {
    let mut door = Door::open(Audit::default()).await;
    let inputs = inputs();
    for method in METHODS {
        try_row(&mut door, method.path, &request(method, &inputs), method.needs, method.needs.right()).await;
    }
}

/// Calls that read and write, by what is in them.
#[tokio::test]
async fn an_operation_that_writes_needs_the_right_to_write() {
    use keyspace_proto::operate_request::operation::What;
    let mut door = Door::open(Audit::default()).await;
    let put = keyspace_proto::PutRequest { keyspace: NAME.into(), ..Default::default() };
    let delete = keyspace_proto::DeleteRequest { keyspace: NAME.into(), ..Default::default() };
    let part = keyspace_proto::TransactPart {
        change: Some(keyspace_proto::transact_part::Change::Put(Bytes::new())),
        ..Default::default()
    };
    let transact =
        keyspace_proto::TransactRequest { keyspace: NAME.into(), parts: vec![part], ..Default::default() };
    let keyspaces = "atoll.keyspace.v1.KeyspaceService";
    for (path, body) in [
        (
            "atoll.v1.TableService/Transact".to_owned(),
            transaction(proto::operation::Action::Put(Default::default())),
        ),
        (
            "atoll.v1.TableService/Transact".to_owned(),
            transaction(proto::operation::Action::Delete(Default::default())),
        ),
        (format!("{keyspaces}/Operate"), operation(What::Put(put))),
        (format!("{keyspaces}/Operate"), operation(What::Delete(delete))),
        (format!("{keyspaces}/Transact"), transact.encode_to_vec()),
    ] {
        let needs = atoll_auth::method(&path).unwrap().needs;
        assert!(matches!(needs, Needs::Each(_)), "{path}");
        try_row(&mut door, &path, &body, needs, Some(Right::Write)).await;
    }
}

/// With these records, whoever reads them has all data of tables and ZooKeeper.
#[tokio::test]
async fn the_log_of_the_database_is_read_only_by_who_may_operate_the_cluster() {
    let mut door = Door::open(Audit::default()).await;
    for (path, body) in [
        (
            "atoll.v1.LogService/Read",
            proto::ReadRequest { log: "db".into(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "atoll.corfu.v1.CorfuService/Read",
            atoll_client::corfu_proto::ReadRequest { log: "db".into(), position: 0 }.encode_to_vec(),
        ),
    ] {
        for (grants, said) in [
            (
                &[("cert:alice", Right::Operate, "log:*"), ("cert:alice", Right::Write, "cluster")][..],
                NOT_ALLOWED,
            ),
            (&[("cert:alice", Right::Operate, "cluster")], ADMITTED),
            (&[("cert:alice", Right::Operate, "*")], ADMITTED),
        ] {
            door.grant(grants);
            assert_eq!(door.call(path, body.clone(), Shows::Certificate).await, said, "{path}: {grants:?}");
        }
    }
}

#[tokio::test]
async fn a_stream_ends_when_its_right_is_revoked() {
    let mut door = Door::open(Audit::default()).await;
    door.grant(&[("token:ci", Right::Write, "log:thing")]);
    let (send, messages) = tokio::sync::mpsc::channel(4);
    let mut grpc = tonic::client::Grpc::new(door.anonymous.clone());
    grpc.ready().await.unwrap();
    let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(messages));
    request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    let path = "atoll.v1.LogService/AppendStream";
    send.send(self::request(atoll_auth::method(path).unwrap(), &BTreeMap::new())).await.unwrap();
    let to = PathAndQuery::try_from(format!("/{path}")).unwrap();
    let mut replies = grpc.streaming(request, to, Raw).await.unwrap().into_inner();
    let records = |first_seq| {
        let records = proto::Records { first_seq, payloads: vec![Bytes::from_static(b"x")], floor: None };
        proto::AppendStreamRequest { what: Some(What::Records(records)) }.encode_to_vec()
    };
    replies.message().await.unwrap().unwrap();
    send.send(records(1)).await.unwrap();
    let reply = proto::AppendStreamReply::decode(replies.message().await.unwrap().unwrap()).unwrap();
    assert_eq!(reply.outcomes[0].failed, None);
    door.grant(&[]);
    send.send(records(2)).await.unwrap();
    let status = loop {
        match replies.message().await {
            Err(status) => break status,
            Ok(Some(reply)) => {
                let reply = proto::AppendStreamReply::decode(reply).unwrap();
                assert!(reply.outcomes.is_empty(), "appended without the right: {reply:?}");
            }
            Ok(None) => panic!("the stream has ended without a reason"),
        }
    };
    assert_eq!(reason(&status), NOT_ALLOWED, "{status:?}");
}

#[test]
fn every_method_of_the_api_is_in_the_table_and_nothing_else() {
    let mut described: BTreeSet<String> = inputs().into_keys().collect();
    described.insert("grpc.reflection.v1.ServerReflection/ServerReflectionInfo".to_owned());
    let listed: BTreeSet<String> = METHODS.iter().map(|method| method.path.to_owned()).collect();
    assert_eq!(described, listed);
}

/// Returns the table as the documentation shows it.
fn table() -> String {
    let mut out = "| method | right | on |\n| --- | --- | --- |\n".to_owned();
    for Method { path, needs } in METHODS {
        let (right, on) = match needs {
            Needs::Known => ("none, but the caller must be known".to_owned(), String::new()),
            Needs::Listed(kind) => {
                ("the same".to_owned(), format!("lists each {} that the caller may read", kind.word()))
            }
            Needs::Cluster(right) => (right.to_string(), "`cluster`".to_owned()),
            Needs::Named(kind, right) => (right.to_string(), format!("`{}:NAME`", kind.word())),
            Needs::Records => (
                "read; for the log `db`: operate".to_owned(),
                "`log:NAME`; for the log `db`: `cluster`".to_owned(),
            ),
            Needs::Each(kind) => (
                "read, or write if it changes anything".to_owned(),
                format!("each `{}:NAME` that it names", kind.word()),
            ),
        };
        writeln!(out, "| `{path}` | {right} | {on} |").unwrap();
    }
    out
}

#[test]
fn the_documentation_has_the_table() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/authorisation.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let (head, rest) = text.split_once("<!-- methods -->\n").unwrap();
    let (kept, tail) = rest.split_once("<!-- end of methods -->").unwrap();
    if std::env::var_os("ATOLL_REWRITE_GENERATED").is_some() {
        let whole = format!("{head}<!-- methods -->\n{}<!-- end of methods -->{tail}", table());
        std::fs::write(&file, whole).unwrap();
        return;
    }
    assert!(kept == table(), "run this test with ATOLL_REWRITE_GENERATED=1, and commit {}", file.display());
}

/// Each line of the audit log is an object with these, and no secret.
#[tokio::test]
async fn operations_and_refusals_are_in_the_audit_log() {
    let folder = std::env::temp_dir().join(format!("atoll-audit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let audit = Audit::open(&folder).unwrap();
    let mut door = Door::open(audit).await;
    door.grant(&[("token:ci", Right::Operate, "log:thing")]);
    let trim = proto::TrimRequest { log: NAME.into(), to: 0 }.encode_to_vec();
    assert_eq!(door.call("atoll.v1.LogService/Trim", trim.clone(), Shows::Token).await, ADMITTED);
    assert_eq!(door.call("atoll.v1.LogService/Trim", trim.clone(), Shows::Certificate).await, NOT_ALLOWED);
    assert_eq!(door.call("atoll.v1.LogService/Trim", trim, Shows::WrongToken).await, "unauthenticated");
    let lines = loop {
        let text = std::fs::read_to_string(folder.join(atoll_door::audit::AUDIT_FILE)).unwrap();
        if text.lines().count() == 3 && text.ends_with('\n') {
            break text;
        }
        tokio::task::yield_now().await;
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let all: Vec<&str> = lines.lines().collect();
    for (line, words) in all.iter().zip([
        ["\"event\":\"operation\"", "\"who\":\"token:ci\"", "\"on\":\"log:thing\"", "\"outcome\":\"done\""],
        ["\"event\":\"refused\"", "\"who\":\"cert:alice\"", "LogService/Trim", "lacks the right to operate"],
        ["\"event\":\"refused\"", "\"who\":\"anonymous\"", "LogService/Trim", "no such token"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)) && line.contains("\"time_ms\":"), "{line}");
    }
    assert!(!lines.contains(TOKEN) && !lines.contains("atoll_00"), "no token is in the log");
}
