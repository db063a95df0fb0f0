//! The mirror of a store in a second cluster, and what lets writers wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atoll_core::Tick;
use atoll_log_apps::mirror::{LagGauge, Mirror, MirrorError, MirrorOptions, MirrorReplica};
use atoll_log_apps::player::PlayError;
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::{MapLimits, Readers};
use serde_json::json;

use super::store::play_options;
use super::target::{Ending, Target, now_ns, open, seconds};
use super::{Error, hex, print};

/// How long the mirror waits when it has everything, and after an error.
const PAUSE: Duration = Duration::from_millis(20);
/// How often the mirror tells its lag.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// How often writers look how long the primary's log is, and how far the mirror is.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Options of the mirror's process.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Addresses of the second cluster's nodes for gRPC
    #[arg(long, value_name = "HOST:PORT,...")]
    to: String,
    /// Name of the log in the second cluster. It is created if it does not exist
    #[arg(long, default_value = "apps-mirror")]
    to_log: String,
    /// Kind of Loglet for a log of the second cluster that does not exist yet [default: the cluster's]
    #[arg(long, value_name = "KIND")]
    to_loglet: Option<String>,
    /// How long to run at most
    #[arg(long, default_value_t = 86_400.0, value_parser = seconds)]
    seconds: f64,
}

/// Copies until it receives a signal to end. It prints the lag and the primary's index that the mirror is at, with the hash there.
pub async fn run(args: &Args) -> Result<(), Error> {
    let primary = args.target.open().await?;
    let second = open(&args.to, &args.to_log, args.to_loglet.clone(), args.target.timeout()).await?;
    let replica = Mirror::replica(second, MapLimits::default(), play_options());
    let gauge = LagGauge::new(u64::MAX);
    let mut mirror = Mirror::new(
        "mirror",
        primary,
        replica.clone(),
        Arc::new(Readers::default()),
        gauge.clone(),
        MirrorOptions::default(),
    );
    let ending = Ending::after(args.seconds)?;
    let mut told: Option<Instant> = None;
    while !ending.is_over() {
        let step = mirror.step(Tick(now_ns().unsigned_abs())).await;
        let (lag_ms, error) = match &step {
            Ok(lag) => (Some(lag.nanos / 1_000_000), None),
            Err(MirrorError::Play(PlayError::Log(error))) => (None, Some(error.to_string())),
            Err(_) => return step.map(drop).map_err(Error::from),
        };
        if error.is_some() || told.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
            told = Some(Instant::now());
            let (index, hash) = replica.primary_hash();
            print(&json!({
                "app": "mirror", "lag_positions": gauge.positions(), "lag_ms": lag_ms, "applied": index,
                "hash": hex(hash), "error": error,
            }))?;
        }
        if step.is_err() || gauge.positions() == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Options of writers that wait for a mirror.
#[derive(Debug, clap::Args)]
pub struct Bounded {
    /// Refuse writes while the mirror in this cluster is behind by more than --mirror-bound
    #[arg(long, value_name = "HOST:PORT,...")]
    mirror: Option<String>,
    /// The mirror's log
    #[arg(long, default_value = "apps-mirror", requires = "mirror")]
    mirror_log: String,
    /// The most positions that the mirror may be behind, besides what was under way when it was noticed
    #[arg(long, default_value_t = 1000, requires = "mirror")]
    mirror_bound: u64,
}

impl Bounded {
    /// Watches the mirror, if there is one, until the run ends. The gauge shows its lag. A mirror that cannot be reached falls behind.
    pub async fn watch(
        &self,
        primary: Arc<dyn SharedLog>,
        ending: &Ending,
    ) -> Result<Option<Arc<LagGauge>>, Error> {
        let Some(connect) = &self.mirror else { return Ok(None) };
        let second = open(connect, &self.mirror_log, None, 1.0).await?;
        let replica = Mirror::replica(second, MapLimits::default(), play_options());
        let gauge = LagGauge::new(self.mirror_bound);
        // Until the mirror has been heard of, it counts as having nothing.
        let next = Arc::new(AtomicU64::new(0));
        gauge.measure(primary.tail().await?, 0);
        tokio::spawn(follow(replica, next.clone(), ending.clone()));
        tokio::spawn(measure(primary, next, gauge.clone(), ending.clone()));
        Ok(Some(gauge))
    }
}

async fn follow(replica: Arc<MirrorReplica>, next: Arc<AtomicU64>, ending: Ending) {
    while !ending.is_over() {
        // Without an answer, the mirror counts as being where it was.
        if replica.play().await.is_ok() {
            next.store(replica.view(|mirror, _| mirror.map().1), Ordering::Relaxed);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn measure(primary: Arc<dyn SharedLog>, next: Arc<AtomicU64>, gauge: Arc<LagGauge>, ending: Ending) {
    while !ending.is_over() {
        if let Ok(tail) = primary.tail().await {
            gauge.measure(tail, next.load(Ordering::Relaxed));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
