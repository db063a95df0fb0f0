//! The addresses of a cluster, the connections to them, and calls that fail over between them.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Response, Status};
use tower::ServiceExt;

use crate::error::{Error, Failure, Outcome, is_worth_retrying, parse};
use crate::operations::Node;
use crate::options::Options;
use crate::proto::Reason;

/// The flow-control windows. They are so large that they never stop a stream within a data centre.
const STREAM_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// The client pings during calls, so that it notices a stopped node before the deadline of the call.
const PING_INTERVAL: Duration = Duration::from_millis(300);
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// After so many rounds through all addresses that fail because of TLS, an operation fails. A single one may meet nodes that restart.
const TLS_ROUNDS: usize = 8;

/// Whether a call may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Performing the call twice has the same effect as once, so it is retried even if its outcome is unknown.
    Idempotent,
    /// The call is retried only if it certainly did not happen.
    Once,
}

/// A connection, whose calls show the client's token.
pub(crate) type Channel = InterceptedService<tonic::transport::Channel, ShowToken>;

/// Adds the client's token to its calls.
#[derive(Clone, Debug)]
pub(crate) struct ShowToken(Option<MetadataValue<Ascii>>);

impl ShowToken {
    fn new(options: &Options) -> Result<Self, Error> {
        let Some(token) = &options.token else { return Ok(ShowToken(None)) };
        let wrong = |_| Error::invalid("the token has characters that no token has", "is it the right file?");
        let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.text()).parse().map_err(wrong)?;
        value.set_sensitive(true);
        Ok(ShowToken(Some(value)))
    }
}

impl Interceptor for ShowToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

struct Address {
    text: String,
    endpoint: Endpoint,
    channel: Mutex<Option<Channel>>,
}

/// What is known of the attempts that were made before a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Earlier {
    /// Whether one of them took effect.
    pub(crate) happened: Outcome,
    /// When the operation began. Its time limit counts from then on.
    pub(crate) began: Instant,
}

impl Earlier {
    /// Returns what is known before the first attempt.
    pub(crate) fn none() -> Self {
        Earlier { happened: Outcome::No, began: Instant::now() }
    }
}

/// The addresses, one of which is in use: all calls go to it until it fails.
pub(crate) struct Connections {
    pub(crate) options: Options,
    token: ShowToken,
    addresses: Vec<Address>,
    current: AtomicUsize,
    first_try: OnceLock<Instant>,
    /// Whether any connection was ever established.
    reached: AtomicBool,
    last_failure: Mutex<Option<Instant>>,
    /// Whether a node ever answered a call.
    answered: AtomicBool,
    /// How many failures in a row were disagreements about TLS.
    without_tls: AtomicUsize,
    /// The nodes, by address, to which the handles of this client send operations on keys.
    nodes: Mutex<BTreeMap<String, Weak<Node>>>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.addresses.iter().map(|a| &a.text)).finish()
    }
}

impl Connections {
    /// Parses the addresses, which are `HOST:PORT`, separated by commas. Does not connect.
    pub(crate) fn new(addresses: &str, options: Options) -> Result<Self, Error> {
        let options = options.bounded();
        let mut texts: Vec<&str> = Vec::new();
        for text in addresses.split(',').map(str::trim).filter(|a| !a.is_empty()) {
            // A repeated address would be tried twice in a row.
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let addresses = texts
            .into_iter()
            .map(|text| {
                let endpoint = endpoint(text, &options)?;
                Ok(Address { text: text.to_owned(), endpoint, channel: Mutex::new(None) })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        if addresses.is_empty() {
            return Err(Error::invalid("no address of a node", "name one or more as HOST:PORT,HOST:PORT"));
        }
        let token = ShowToken::new(&options)?;
        Ok(Connections {
            options,
            token,
            addresses,
            current: AtomicUsize::new(0),
            first_try: OnceLock::new(),
            reached: AtomicBool::new(false),
            last_failure: Mutex::default(),
            answered: AtomicBool::new(false),
            without_tls: AtomicUsize::new(0),
            nodes: Mutex::default(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Returns the index of the address in use.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed) % self.addresses.len()
    }

    pub(crate) fn text(&self, i: usize) -> &str {
        &self.addresses[i].text
    }

    /// Returns all addresses, as they were given.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.addresses.iter().map(|a| a.text.as_str())
    }

    /// Reports that address `i` failed. Drops its shared connection and switches to the next address, unless another caller already
    /// has.
    pub(crate) fn failed(&self, i: usize, failure: &Failure) {
        match failure.is_of_tls() {
            true => self.without_tls.fetch_add(1, Ordering::Relaxed),
            false => self.without_tls.swap(0, Ordering::Relaxed),
        };
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        *self.addresses[i].channel.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let next = (i + 1) % self.addresses.len();
        let _ = self.current.compare_exchange(i, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns whether an address has failed in this time.
    pub(crate) fn failed_within(&self, time: Duration) -> bool {
        let last = *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|at| at.elapsed() < time)
    }

    /// Returns the node at an address. All who ask for it while somebody holds it get the same one.
    pub(crate) fn node(&self, address: &str) -> Option<Arc<Node>> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address).and_then(Weak::upgrade) {
            return Some(node);
        }
        nodes.retain(|_, node| node.strong_count() > 0);
        let node = Arc::new(Node::new(Connections::new(address, self.options.clone()).ok()?));
        nodes.insert(address.to_owned(), Arc::downgrade(&node));
        Some(node)
    }

    /// Returns true if no node was ever reached and the time for the first contact has passed, or if client and nodes disagree about TLS.
    pub(crate) fn is_hopeless(&self) -> bool {
        if self.without_tls.load(Ordering::Relaxed) >= TLS_ROUNDS * self.len() {
            return true;
        }
        let patience = self.options.first_contact;
        !self.reached.load(Ordering::Relaxed) && self.first_try.get().is_some_and(|t| t.elapsed() >= patience)
    }

    /// Opens a separate connection to address `i`, with a new name lookup. If it fails, nothing was sent.
    pub(crate) async fn connect(&self, i: usize) -> Result<Channel, Failure> {
        let address = &self.addresses[i];
        self.first_try.get_or_init(Instant::now);
        let within = self.options.connect_timeout;
        let connecting = address.endpoint.connect_with_connector(sockets(within).map_response(tuned));
        match timeout(within, connecting).await {
            Ok(Ok(channel)) => {
                self.reached.store(true, Ordering::Relaxed);
                Ok(InterceptedService::new(channel, self.token.clone()))
            }
            Ok(Err(e)) => Err(not_connected(&address.text, &e)),
            Err(_) => Err(unreachable_node(&address.text, "no connection in time")),
        }
    }

    /// Returns the shared connection to address `i`, and opens it if necessary.
    pub(crate) async fn channel(&self, i: usize) -> Result<Channel, Failure> {
        let address = &self.addresses[i];
        if let Some(channel) = &*address.channel.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(channel.clone());
        }
        let channel = self.connect(i).await?;
        *address.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(channel.clone());
        Ok(channel)
    }

    /// Reports that a node has answered a call.
    pub(crate) fn note_answer(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }

    /// Parses a status. Of early calls, it also finds out what the transport does not say: that the node speaks TLS, and read nothing.
    pub(crate) async fn parsed(&self, i: usize, status: &Status) -> (Outcome, Failure) {
        let (outcome, failure) = parse(status);
        let (text, within) = (&self.addresses[i].text, self.options.connect_timeout);
        let may_be = self.options.tls.is_none() && !self.answered.load(Ordering::Relaxed);
        let is_of_transport = failure.reason == Reason::Unavailable && failure.next.is_empty();
        if may_be && is_of_transport && matches!(timeout(within, speaks_tls(text)).await, Ok(Ok(true))) {
            return (Outcome::No, Failure::without_tls(text));
        }
        // A node refuses a certificate, or that there is none, after the client's half of the handshake has ended well. The transport does
        // not always say why it has no connection any more.
        let is_early = self.options.tls.is_some() && !self.answered.load(Ordering::Relaxed);
        match cause_in_tls(status) {
            Some(why) => (outcome, Failure::of_tls(format!("{text}: TLS: {why}"))),
            None if is_early && is_of_transport => {
                (outcome, Failure::of_tls(format!("{text}: closed right after the handshake of TLS")))
            }
            None => (outcome, failure),
        }
    }

    /// Performs one call, with as many attempts and addresses as its deadline allows. The error says what is known from all attempts.
    pub(crate) async fn call<T, F, R>(
        &self,
        repeat: Repeat,
        attempt_timeout: Duration,
        f: F,
    ) -> Result<T, Error>
    where
        F: Fn(Channel) -> R,
        R: Future<Output = Result<Response<T>, Status>>,
    {
        self.call_after(Earlier::none(), repeat, attempt_timeout, |channel, _| f(channel)).await
    }

    /// Like [`Connections::call`], after attempts at nodes that are not among these. `f` receives what is known of all earlier attempts.
    pub(crate) async fn call_after<T, F, R>(
        &self,
        earlier: Earlier,
        repeat: Repeat,
        attempt_timeout: Duration,
        f: F,
    ) -> Result<T, Error>
    where
        F: Fn(Channel, Outcome) -> R,
        R: Future<Output = Result<Response<T>, Status>>,
    {
        let Earlier { mut happened, began } = earlier;
        let deadline = began + self.options.operation_timeout.max(attempt_timeout);
        let mut attempts = 0;
        loop {
            let at = self.current();
            let failure = match self.channel(at).await {
                Err(failure) => failure,
                Ok(channel) => {
                    let until = deadline.min(Instant::now() + attempt_timeout);
                    match timeout_at(until, f(channel, happened)).await {
                        Ok(Ok(response)) => {
                            self.note_answer();
                            return Ok(response.into_inner());
                        }
                        Ok(Err(status)) => {
                            let (outcome, failure) = self.parsed(at, &status).await;
                            happened = happened.and(outcome);
                            if !is_worth_retrying(failure.reason) {
                                return Err(ended(happened, failure));
                            }
                            failure
                        }
                        Err(_) => {
                            happened = happened.and(Outcome::Unknown);
                            unreachable_node(self.text(at), "no answer in time")
                        }
                    }
                }
            };
            self.failed(at, &failure);
            attempts += 1;
            let wait = match attempts % self.len() {
                0 => self.options.backoff((attempts / self.len()) as u32 - 1),
                _ => Duration::ZERO,
            };
            let again = repeat == Repeat::Idempotent || happened == Outcome::No;
            if !again || Instant::now() + wait >= deadline || self.is_hopeless() {
                return Err(ended(happened, failure));
            }
            sleep(wait).await;
        }
    }
}

/// Returns the error of an operation that ended with this failure.
pub(crate) fn ended(happened: Outcome, failure: Failure) -> Error {
    match happened {
        Outcome::No => Error::DidNotHappen(failure),
        Outcome::Unknown => Error::Unknown(failure),
        Outcome::Yes => Error::Happened(failure),
    }
}

pub(crate) fn unreachable_node(address: &str, why: &str) -> Failure {
    Failure::new(
        Reason::Unavailable,
        format!("{address}: {why}"),
        "is the cluster up? `atoll dev` starts one; --connect or ATOLL_CONNECT names other addresses",
    )
}

/// Whether a node answers the first bytes of HTTP/2 with an alert of TLS.
async fn speaks_tls(address: &str) -> std::io::Result<bool> {
    const ALERT: u8 = 21;
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
    Ok(stream.read_u8().await? == ALERT)
}

fn not_connected(address: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    match cause_in_tls(error) {
        Some(why) => Failure::of_tls(format!("{address}: TLS: {why}")),
        None => unreachable_node(address, &root_cause(error)),
    }
}

/// Returns what TLS says, if it is the cause of an error.
fn cause_in_tls(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(one) = cause {
        // The error of a handshake comes as one of the socket, which holds it without being its source.
        let within = one.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if one.is::<rustls::Error>() || within.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return Some(root_cause(one));
        }
        cause = one.source();
    }
    None
}

/// Returns the innermost cause, usually the message of the operating system.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Opens the sockets of connections.
fn sockets(connect_timeout: Duration) -> HttpConnector {
    let mut http = HttpConnector::new();
    // The scheme of an address with TLS is another one.
    http.enforce_http(false);
    http.set_connect_timeout(Some(connect_timeout));
    http
}

fn tuned(stream: TokioIo<TcpStream>) -> TokioIo<TcpStream> {
    // If this fails, the connection itself will show it.
    let _ = atoll_socket::tune(stream.inner());
    stream
}

fn endpoint(text: &str, options: &Options) -> Result<Endpoint, Error> {
    let next = "an address is HOST:PORT, for example 127.0.0.1:7411";
    let bad = |why: String| Error::invalid(format!("address {text:?}: {why}"), next);
    let authority: http::uri::Authority = text.parse().map_err(|e| bad(format!("{e}")))?;
    if authority.port_u16().is_none() {
        return Err(bad("it has no port".to_owned()));
    }
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{text}"))
        .map_err(|e| bad(root_cause(&e)))?
        .connect_timeout(options.connect_timeout)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(false);
    if let Some(tls) = &options.tls {
        let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            config = config.identity(Identity::from_pem(certificate, key));
        }
        config = config.domain_name(tls.domain.clone().unwrap_or_else(|| authority.host().to_owned()));
        endpoint = endpoint.tls_config(config).map_err(|e| {
            Error::invalid(
                format!("TLS: {}", root_cause(&e)),
                "check the PEM files of the authority and of the client",
            )
        })?;
    }
    Ok(endpoint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_named() {
        for bad in ["", " , ", "node1", "http://a:1/x y", "a:b"] {
            assert!(matches!(
                Connections::new(bad, Options::default()),
                Err(Error::DidNotHappen(Failure { reason: Reason::Invalid, .. }))
            ));
        }
        let some = Connections::new("127.0.0.1:7411, [::1]:7421,127.0.0.1:7411,", Options::default())
            .expect("valid");
        assert_eq!(some.texts().collect::<Vec<_>>(), ["127.0.0.1:7411", "[::1]:7421"]);
    }

    #[test]
    fn an_error_says_what_is_known_from_all_attempts() {
        use Outcome::{No, Unknown, Yes};
        let over = |attempts: &[Outcome]| {
            let happened = attempts.iter().fold(No, |known, next| known.and(*next));
            ended(happened, Failure::new(Reason::Unavailable, "", ""))
        };
        assert!(matches!(over(&[No, No]), Error::DidNotHappen(_)));
        assert!(matches!(over(&[Unknown, No]), Error::Unknown(_)));
        for attempts in [&[Yes][..], &[Unknown, Yes], &[Yes, No], &[Yes, Unknown]] {
            assert!(matches!(over(attempts), Error::Happened(_)), "{attempts:?}");
        }
    }

    #[test]
    fn only_the_one_in_use_is_moved_on_from() {
        let some = Connections::new("a:1,b:2,c:3", Options::default()).expect("valid");
        let gone = unreachable_node("", "gone");
        some.failed(0, &gone);
        assert_eq!(some.current(), 1);
        some.failed(0, &gone);
        assert_eq!(some.current(), 1);
        some.failed(1, &gone);
        some.failed(2, &gone);
        assert_eq!(some.current(), 0);
    }

    /// Answers each connection as a server with TLS does that gets something else: with an alert.
    async fn with_tls() -> String {
        const UNEXPECTED_MESSAGE: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let there = listener.local_addr().expect("its address").to_string();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut first = [0; 1];
                // The client may be gone already.
                if client.read_exact(&mut first).await.is_ok() {
                    let _ = client.write_all(&UNEXPECTED_MESSAGE).await;
                }
            }
        });
        there
    }

    #[tokio::test]
    async fn a_client_without_tls_does_not_wait_at_nodes_that_have_it() {
        let nodes = format!("{},{}", with_tls().await, with_tls().await);
        let hour = Duration::from_secs(3600);
        let options =
            Options { operation_timeout: hour, backoff_max: Duration::from_millis(1), ..Options::default() };
        let all = Connections::new(&nodes, options).expect("valid");
        let ask = |channel| async move {
            crate::proto::log_service_client::LogServiceClient::new(channel)
                .check_tail(crate::proto::CheckTailRequest::default())
                .await
        };
        let call = all.call(Repeat::Idempotent, Duration::from_secs(5), ask);
        let error = timeout(Duration::from_secs(60), call).await.expect("an end").expect_err("no answer");
        assert!(error.failure().next.contains("--tls-ca"), "{error}");
        assert!(all.is_hopeless());
        all.failed(0, &unreachable_node("", "gone"));
        assert!(!all.is_hopeless(), "one of the nodes may come back");
    }

    #[tokio::test]
    async fn an_attempt_is_told_whether_an_earlier_one_may_have_happened() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let there = listener.local_addr().expect("its address").to_string();
        let options = Options { operation_timeout: Duration::from_secs(5), ..Options::default() };
        // The attempt at port 1 reaches nobody, so it does not count.
        let all = Connections::new(&format!("127.0.0.1:1,{there}"), options).expect("valid");
        let told = Mutex::new(Vec::new());
        let within = Duration::from_secs(5);
        let ask = |_, happened| {
            told.lock().expect("its tests do not panic").push(happened);
            async move {
                match happened {
                    Outcome::No => Err(Status::unavailable("broken pipe")),
                    _ => Ok(Response::new("done")),
                }
            }
        };
        let reply = all.call_after(Earlier::none(), Repeat::Idempotent, within, ask).await;
        assert_eq!(reply.expect("the second attempt"), "done");
        assert_eq!(*told.lock().expect("its tests do not panic"), [Outcome::No, Outcome::Unknown]);
        let earlier = Earlier { happened: Outcome::Unknown, ..Earlier::none() };
        all.call_after(earlier, Repeat::Idempotent, within, ask).await.expect("the first attempt");
        assert_eq!(told.lock().expect("its tests do not panic").last(), Some(&Outcome::Unknown));
        // The time of earlier attempts counts.
        let began = Instant::now() - Duration::from_secs(60);
        let late = Earlier { happened: Outcome::No, began };
        let late = all.call_after(late, Repeat::Idempotent, within, ask).await;
        assert!(matches!(late, Err(Error::Unknown(_))), "{late:?}");
    }
}
