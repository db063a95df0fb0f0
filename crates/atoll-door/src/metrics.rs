//! `GET /metrics`: serves the metrics of a node and its doors in the OpenMetrics text format.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::Measure;
use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

/// The maximum number of concurrent connections. For a further one, the oldest is closed: otherwise clients that never read could keep the
/// monitoring out.
const MAX_CONNECTIONS: usize = 64;
/// The head of a request must be complete within this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is closed after this time in any case, so that a client that does not read cannot occupy it forever.
const CONNECTION_FOR: Duration = Duration::from_secs(60);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A source of metrics: the node, or a door.
pub trait Figures: Send + Sync + 'static {
    /// Returns the current values. A name that ends in `_total` is a counter, all others are gauges.
    fn measures(&self) -> Vec<Measure>;

    /// Returns lines in the same format with names that are defined elsewhere, without the prefix `atoll_`.
    fn under_other_names(&self) -> String {
        String::new()
    }
}

/// Serves `GET /metrics` until `stop` completes.
pub async fn serve_metrics(
    listener: TcpListener,
    figures: Arc<dyn Figures>,
    stop: impl Future<Output = ()> + Send,
) {
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => return,
        };
        let Ok((socket, _)) = accepted else {
            // Most likely, no file descriptors are left. Wait until some are closed.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MAX_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let figures = figures.clone();
        let connection = tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = respond(&request, &*figures);
                async move { Ok::<_, Infallible>(response) }
            });
            // Errors of a connection are ignored: they only mean that the client disconnected.
            let serving = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .serve_connection(TokioIo::new(socket), service);
            let _ = tokio::time::timeout(CONNECTION_FOR, serving).await;
        });
        open.push_back(connection.abort_handle());
    }
}

fn respond<B>(request: &Request<B>, figures: &dyn Figures) -> Response<Full<Bytes>> {
    let plain = |status, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => match render(figures.measures(), &figures.under_other_names()) {
            Ok(text) => {
                let mut response = Response::new(Full::new(Bytes::from(text)));
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(CONTENT_TYPE));
                response
            }
            Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "a figure cannot be written as text\n"),
        },
        (_, "/metrics") => plain(StatusCode::METHOD_NOT_ALLOWED, "GET only\n"),
        _ => plain(StatusCode::NOT_FOUND, "only /metrics is served here\n"),
    }
}

/// Renders measures as text and appends the lines in `more`. Measures with the same name and different labels become one metric.
pub fn render(measures: Vec<Measure>, more: &str) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("atoll");
    registry.register_collector(Box::new(Snapshot::of(measures)));
    let mut out = String::new();
    text::encode_registry(&mut out, &registry)?;
    out.push_str(more);
    text::encode_eof(&mut out)?;
    Ok(out)
}

type Labels = Vec<(&'static str, String)>;

/// Measures by name, some of them with labels.
#[derive(Debug)]
struct Snapshot(BTreeMap<&'static str, Vec<(Labels, f64)>>);

impl Snapshot {
    fn of(measures: Vec<Measure>) -> Self {
        let mut by_name: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for measure in measures {
            by_name
                .entry(measure.name)
                .or_default()
                .push((measure.label.into_iter().collect(), measure.value));
        }
        Snapshot(by_name)
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, figures) in &self.0 {
            // The encoder appends `_total` again.
            let (name, counter) = match name.strip_suffix("_total") {
                Some(name) => (name, true),
                None => (*name, false),
            };
            let help = help(name);
            let kind = if counter {
                ConstCounter::new(0f64).metric_type()
            } else {
                ConstGauge::new(0f64).metric_type()
            };
            let mut family = encoder.encode_descriptor(name, &help, None, kind)?;
            if let [(labels, value)] = &figures[..]
                && labels.is_empty()
            {
                write(counter, *value, family)?;
                continue;
            }
            for (labels, value) in figures {
                write(counter, *value, family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn write(counter: bool, value: f64, to: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    match counter {
        true => ConstCounter::new(value).encode(to),
        false => ConstGauge::new(value).encode(to),
    }
}

fn help(name: &str) -> String {
    name.replace('_', " ")
}

/// Returns measures of this process: CPU time, resident memory, open file descriptors. Empty on systems other than Linux.
pub fn process_measures() -> Vec<Measure> {
    let mut out = Vec::new();
    let mut add = |name, value| out.push(Measure { name, label: None, value });
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat")
        && let Some((_, fields)) = stat.rsplit_once(')')
    {
        // These are the fields after the name. The first one is field 3 of proc(5), so utime, which is field 14, has index 11.
        let fields: Vec<f64> = fields.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
        if let (Some(user), Some(system)) = (fields.get(11), fields.get(12)) {
            add("process_cpu_seconds_total", (user + system) / TICKS_PER_SECOND);
        }
    }
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && let Some(line) = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))
        && let Some(kib) = line.split_whitespace().next().and_then(|f| f.parse::<f64>().ok())
    {
        add("process_resident_memory_bytes", kib * 1024.0);
    }
    // Newer systems tell the number as the length of the folder; a list of it takes long if there are many.
    let told = std::fs::metadata("/proc/self/fd").ok().map(|folder| folder.len()).filter(|files| *files > 0);
    let listed = || std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64);
    if let Some(files) = told.or_else(listed) {
        add("process_open_fds", files as f64);
    }
    out
}

/// `USER_HZ`, which is 100 on every architecture that we run on.
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn figures_of_one_name_are_one_metric() {
        let measure = |name, label: Option<&str>, value| Measure {
            name,
            label: label.map(|l| ("log", l.to_owned())),
            value,
        };
        let text = render(
            vec![
                measure("appends_total", Some("main"), 7.0),
                measure("journal_bytes", None, 4096.0),
                measure("appends_total", Some("a\"b"), 2.0),
            ],
            "# TYPE znode_count gauge\nznode_count 5\n",
        )
        .unwrap();
        assert_eq!(text.matches("# TYPE atoll_appends counter").count(), 1, "{text}");
        assert!(text.contains("atoll_appends_total{log=\"main\"} 7.0"), "{text}");
        assert!(text.contains("atoll_appends_total{log=\"a\\\"b\"} 2.0"), "{text}");
        assert!(text.contains("atoll_journal_bytes 4096.0"), "{text}");
        assert!(text.ends_with("\nznode_count 5\n# EOF\n"), "{text}");
    }

    #[test]
    fn the_process_is_measured() {
        let names: Vec<_> = process_measures().iter().map(|m| m.name).collect();
        assert!(
            cfg!(not(target_os = "linux")) || names.contains(&"process_resident_memory_bytes"),
            "{names:?}"
        );
    }
}
