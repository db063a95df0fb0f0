//! HTTP requests: routes, permissions, and bounds on bodies.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::super::Shared;
use super::restore::{self, RestoreFailed};
use super::snapshot::{self, SnapshotFailed};
use atoll_core::sync::lock;

use super::{Admin, Limit, Limited, commands};
use crate::acl;
use crate::tree::snapshot::MAX_BYTES;

/// Most connections at a time. Further ones are closed at once.
const MAX_CONNECTIONS: usize = 64;
/// The head of a request must arrive within this time.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// The next piece of a body must arrive within this time.
const MORE_WITHIN: Duration = Duration::from_secs(30);
/// How long to read a body that is not wanted. At most as many bytes are read as a wanted body may have.
const DRAINED_FOR: Duration = Duration::from_secs(30);
/// A connection is closed after this time, whatever it does. A client that reads nothing therefore cannot hold its place for
/// longer.
const CONNECTION_FOR: Duration = Duration::from_secs(3600);

type Body = BoxBody<Bytes, Infallible>;

/// Serves connections until `stop` completes.
pub(in super::super) async fn serve(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
) {
    let (admin, room) = (Arc::new(Admin::new(shared)), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => return,
        };
        let Ok((socket, peer)) = accepted else {
            // Most likely no file descriptors are left. Wait until some are closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = room.clone().try_acquire_owned() else { continue };
        let admin = admin.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let admin = admin.clone();
                async move { Ok::<_, Infallible>(answer(&admin, peer, request).await) }
            });
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_WITHIN)
                .serve_connection(TokioIo::new(socket), service);
            // A client that disconnects or is cut off needs no report.
            let _ = timeout(CONNECTION_FOR, serving).await;
            drop(place);
        });
    }
}

/// The answer to a request that was refused.
struct Refused {
    status: StatusCode,
    error: String,
    /// An additional header with details.
    header: Option<(HeaderName, HeaderValue)>,
}

fn refused(status: StatusCode, error: impl Into<String>) -> Refused {
    Refused { status, error: error.into(), header: None }
}

fn whole(status: StatusCode, kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(text)).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns a JSON answer in the form that all commands use.
fn as_json(
    command: &str,
    status: StatusCode,
    error: Option<&str>,
    fields: Map<String, Value>,
) -> Response<Body> {
    let mut all = Map::new();
    all.insert("command".to_owned(), command.into());
    all.insert("error".to_owned(), error.into());
    all.extend(fields);
    whole(status, "application/json", format!("{:#}\n", Value::Object(all)))
}

async fn answer(admin: &Arc<Admin>, peer: SocketAddr, request: Request<Incoming>) -> Response<Body> {
    let (request, body) = request.into_parts();
    let mut body = Some(body);
    let response = route(admin, peer, &request, &mut body).await;
    // A client that sends a body reads no answer before it has sent all of it, unless it asked first whether it may send it.
    if let Some(body) = body.filter(|_| !request.headers.contains_key(header::EXPECT)) {
        // A body that does not end in time is cut off.
        let _ = timeout(DRAINED_FOR, drain(body)).await;
    }
    response
}

/// Reads and discards a body, up to the size of the largest snapshot.
async fn drain(mut body: Incoming) {
    let mut left = MAX_BYTES;
    while left > 0 && !body.is_end_stream() {
        let Some(Ok(frame)) = body.frame().await else { break };
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
    }
}

async fn route(
    admin: &Arc<Admin>,
    peer: SocketAddr,
    request: &Parts,
    body: &mut Option<Incoming>,
) -> Response<Body> {
    let path = request.uri.path().trim_end_matches('/').to_owned();
    let Some(asked) = path.strip_prefix("/commands") else {
        return whole(StatusCode::NOT_FOUND, "text/plain", "only /commands is here\n".to_owned());
    };
    let asked = asked.trim_start_matches('/');
    if asked.is_empty() {
        return match allows(request, &Method::GET) {
            Ok(()) => whole(StatusCode::OK, "text/html", list()),
            Err(refused) => refuse("commands", refused),
        };
    }
    let Some(command) = commands::named(asked) else {
        let error = format!("Unknown command: {asked}");
        return as_json(asked, StatusCode::NOT_FOUND, Some(&error), Map::new());
    };
    let answered = match command {
        "snapshot" => take_snapshot(admin, peer, request).await,
        "restore" => restore(admin, peer, request, body).await,
        "last_snapshot" => allows(request, &Method::GET).map(|()| last_snapshot(admin)),
        command => match allows(request, &Method::GET) {
            Ok(()) => {
                let query = request.uri.query().unwrap_or_default();
                let fields = commands::run_in_turn(&admin.shared, command, query).await;
                let error = fields.get("error").and_then(Value::as_str).map(str::to_owned);
                Ok(as_json(command, StatusCode::OK, error.as_deref(), fields))
            }
            Err(refused) => Err(refused),
        },
    };
    answered.unwrap_or_else(|refused| refuse(command, refused))
}

fn refuse(command: &str, refused: Refused) -> Response<Body> {
    let mut response = as_json(command, refused.status, Some(&refused.error), Map::new());
    if let Some((name, value)) = refused.header {
        response.headers_mut().insert(name, value);
    }
    // The rest of an unread body must not be parsed as the next request.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns the list of commands, as links.
fn list() -> String {
    commands::names()
        .fold(String::new(), |all, name| all + &format!("<a href=\"/commands/{name}\">{name}</a>\n<br/>\n"))
}

fn allows(request: &Parts, method: &Method) -> Result<(), Refused> {
    // HEAD is GET without a response body.
    if request.method == method || (method == Method::GET && request.method == Method::HEAD) {
        return Ok(());
    }
    let error = format!("{} is not allowed here; allowed: {method}", request.method);
    let allow = HeaderValue::from_str(method.as_str()).ok();
    let header = allow.map(|allow| (header::ALLOW, allow));
    Err(Refused { status: StatusCode::METHOD_NOT_ALLOWED, error, header })
}

/// Returns the ids of the sender, from the header `Authorization: SCHEME AUTH`.
fn ids(shared: &Shared, peer: SocketAddr, headers: &HeaderMap) -> Result<Vec<(String, String)>, Refused> {
    let missing = |error: &str| Refused {
        status: StatusCode::UNAUTHORIZED,
        error: error.to_owned(),
        header: Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("digest"))),
    };
    let given = headers.get(header::AUTHORIZATION);
    let given = given.ok_or_else(|| {
        missing("Auth info is missing for the command: Authorization: digest USER:PASSWORD")
    })?;
    let given =
        given.to_str().map_err(|_| missing("Not authenticated: the header Authorization is not text"))?;
    let (scheme, auth) = given.split_once(' ').unwrap_or((given, ""));
    match scheme {
        "digest" if auth.contains(':') && !auth.contains(' ') => {
            let digest = acl::digest_id(auth);
            let is_super = shared.options.super_digest.as_ref() == Some(&digest);
            let mut ids = vec![("digest".to_owned(), digest)];
            ids.extend(is_super.then(|| (acl::SUPER.to_owned(), String::new())));
            Ok(ids)
        }
        "ip" if auth.is_empty() => Ok(vec![("ip".to_owned(), peer.ip().to_canonical().to_string())]),
        _ => Err(missing("Not authenticated; allowed: digest USER:PASSWORD, or ip")),
    }
}

/// Allows only the superuser to transfer the whole tree, because a transfer bypasses all ACLs. ZooKeeper also allows everyone who
/// has all permissions on `/`, which is everyone until the ACL of `/` is set.
fn authorize(shared: &Shared, peer: SocketAddr, headers: &HeaderMap) -> Result<(), Refused> {
    if ids(shared, peer, headers)?.iter().any(|(scheme, _)| scheme == acl::SUPER) {
        return Ok(());
    }
    let error = "Not authorized: only the superuser of zookeeper.super_digest carries the tree";
    Err(refused(StatusCode::FORBIDDEN, error))
}

fn enabled(is: bool, what: &str) -> Result<(), Refused> {
    if is {
        return Ok(());
    }
    Err(refused(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("{what} is not enabled in the configuration of this node"),
    ))
}

fn turn(limit: &Limit) -> Result<super::Taken, Refused> {
    limit.take(Instant::now()).map_err(|limited| {
        let (error, wait) = match limited {
            Limited::Busy => ("one is already in progress".to_owned(), Duration::from_secs(1)),
            Limited::After(left) => {
                let every = limit.every.as_millis();
                (format!("one in {every} ms; the next in {} ms", left.as_millis()), left)
            }
        };
        let seconds = HeaderValue::from(wait.as_secs() + 1);
        let header = Some((header::RETRY_AFTER, seconds));
        Refused { status: StatusCode::TOO_MANY_REQUESTS, error: format!("rate limited: {error}"), header }
    })
}

fn last_snapshot(admin: &Admin) -> Response<Body> {
    let (zxid, at_ms) = lock(&admin.last_snapshot).unwrap_or((-1, -1));
    let fields = [("zxid", json!(format!("{zxid:x}"))), ("timestamp", json!(at_ms))];
    let fields = fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    as_json("last_snapshot", StatusCode::OK, None, fields)
}

async fn take_snapshot(admin: &Admin, peer: SocketAddr, request: &Parts) -> Result<Response<Body>, Refused> {
    allows(request, &Method::GET)?;
    authorize(&admin.shared, peer, &request.headers)?;
    enabled(admin.shared.options.admin.snapshot, "snapshot")?;
    let mut turn = turn(&admin.snapshots)?;
    let taken = snapshot::take(&admin.shared).await.map_err(|failed| {
        let status = match failed {
            SnapshotFailed::OutOfTouch | SnapshotFailed::Empty => StatusCode::SERVICE_UNAVAILABLE,
            SnapshotFailed::Read(_) | SnapshotFailed::BrokenOff => StatusCode::INTERNAL_SERVER_ERROR,
        };
        refused(status, failed.to_string())
    })?;
    turn.counts();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX);
    *lock(&admin.last_snapshot) = Some((taken.zxid, now_ms));
    let (zxid, size) = (format!("{:#x}", taken.zxid), taken.size);
    let streams = commands::argument(request.uri.query().unwrap_or_default(), "streaming") != Some("false");
    let mut response = if streams && request.method == Method::GET {
        let mut pieces = snapshot::pieces(taken);
        // The turn ends with the last piece.
        let body = stream::poll_fn(move |cx| {
            let _ = &turn;
            pieces.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
        });
        let mut response = Response::new(BodyExt::boxed(StreamBody::new(body)));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(size));
        response
    } else {
        as_json("snapshot", StatusCode::OK, None, Map::new())
    };
    // ZooKeeper uses these header names.
    let headers = response.headers_mut();
    headers.extend(HeaderValue::from_str(&zxid).map(|zxid| (HeaderName::from_static("last_zxid"), zxid)));
    headers.insert(HeaderName::from_static("snapshot_size"), HeaderValue::from(size));
    Ok(response)
}

/// Reads the body of a request. The body is limited in size, and each piece must arrive within [`MORE_WITHIN`].
async fn read_body(mut body: Incoming) -> Result<Bytes, Refused> {
    let too_large = || {
        refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("not restored: a snapshot has {MAX_BYTES} bytes at most"),
        )
    };
    let most = MAX_BYTES as u64;
    if body.size_hint().lower() > most {
        return Err(too_large());
    }
    let mut out = BytesMut::new();
    loop {
        let more = timeout(MORE_WITHIN, body.frame()).await;
        let more = more.map_err(|_| {
            refused(StatusCode::REQUEST_TIMEOUT, format!("not restored: no data arrived for {MORE_WITHIN:?}"))
        })?;
        let Some(frame) = more else { break };
        let frame = frame.map_err(|e| refused(StatusCode::BAD_REQUEST, format!("not restored: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if out.len() + data.len() > MAX_BYTES {
            return Err(too_large());
        }
        out.extend_from_slice(&data);
    }
    Ok(out.freeze())
}

async fn restore(
    admin: &Arc<Admin>,
    peer: SocketAddr,
    request: &Parts,
    body: &mut Option<Incoming>,
) -> Result<Response<Body>, Refused> {
    allows(request, &Method::POST)?;
    authorize(&admin.shared, peer, &request.headers)?;
    enabled(admin.shared.options.admin.restore, "restore")?;
    let mut turn = turn(&admin.restores)?;
    let Some(body) = body.take() else {
        return Err(refused(StatusCode::BAD_REQUEST, "not restored: there is no body"));
    };
    let file = read_body(body).await?;
    let broken_off = |e: tokio::task::JoinError| {
        refused(StatusCode::INTERNAL_SERVER_ERROR, format!("it is not known whether it was restored: {e}"))
    };
    let shared = admin.shared.clone();
    let max_command_bytes = shared.engine.max_command_bytes();
    // A separate task, so that a client that disconnects does not stop the restore half way (contracts X8).
    let done = tokio::spawn(async move {
        let checked = tokio::task::spawn_blocking(move || restore::check(file, max_command_bytes)).await;
        let checked = checked.map_err(|e| RestoreFailed::NotDone(e.to_string()))??;
        turn.counts();
        restore::restore(&shared, &checked).await
    });
    match done.await.map_err(broken_off)? {
        Ok(zxid) => {
            let fields = Map::from_iter([("last_zxid".to_owned(), json!(zxid))]);
            Ok(as_json("restore", StatusCode::OK, None, fields))
        }
        Err(failed) => {
            let status = match failed {
                RestoreFailed::Refused(_) => StatusCode::BAD_REQUEST,
                RestoreFailed::Overtaken => StatusCode::CONFLICT,
                RestoreFailed::NotDone(_) => StatusCode::SERVICE_UNAVAILABLE,
                RestoreFailed::Unknown(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            Err(refused(status, failed.to_string()))
        }
    }
}
