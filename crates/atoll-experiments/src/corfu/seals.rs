//! How long a seal takes (paper, Figure 8): of 1 to 8 real units, and of 1 to 32 modelled ones. Each seal is that of a Loglet of its own,
//! by a client that waits until every unit has written down that it is sealed.

use std::time::Instant;

use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::{Encode, Env};
use atoll_corfu::log::id_of;
use atoll_corfu::{CorfuLoglet, Projection};
use serde_json::json;

use super::modelled::{Modelled, ShapeArgs, open, provider};
use super::nodes::{Folder, Nodes};
use super::{Error, failed, load_1m, print};
use crate::latency::Latencies;

/// The numbers of units.
const REAL: [u32; 4] = [1, 2, 4, 8];
const MODELLED: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Virtual time of all seals of one number of units.
const MODEL_MS: u64 = 60_000;

/// Options of the seals.
#[derive(Debug, clap::Args)]
pub struct SealArgs {
    /// Seals of each number of units
    #[arg(long, default_value_t = 200)]
    seals: u64,
    /// At most this many real units
    #[arg(long, default_value_t = 8)]
    real_units: u32,
    /// Use these parameters of the model, as a line of an earlier run has them, instead of measuring them
    #[arg(long, value_name = "JSON")]
    seal_parameters: Option<String>,
}

/// Appends nothing, but makes every unit know the Loglet, and then seals it. Returns how long the seal took, by this clock.
async fn seal_one<T>(loglet: &CorfuLoglet, clock: impl Fn() -> T) -> Option<(T, T)> {
    loglet.check_tail().await.ok()?;
    let began = clock();
    loglet.seal().await.ok()?;
    Some((began, clock()))
}

/// Seals real Loglets, one after the other.
async fn seal_real(env: Env, units: u32, projection: Projection, count: u64) -> Result<Latencies, String> {
    let mut all = Latencies::new();
    for n in 0..count {
        let id = id_of(&format!("seals/{units}/{n}"));
        let loglet = open(&env, id, &projection).map_err(|error| error.to_string())?;
        match seal_one(&loglet, Instant::now).await {
            Some((began, ended)) => {
                all.add(ended - began);
                all.busy += ended - began;
            }
            None => all.errors += 1,
        }
        // What is left of it is only some disk space, which is removed with the nodes.
        let _ = provider(&env).delete(id, &projection.to_bytes()).await;
    }
    Ok(all)
}

/// Seals modelled Loglets, one after the other.
pub async fn seal_modelled(env: Env, projection: Projection, count: u64) -> Latencies {
    let mut all = Latencies::new();
    for n in 0..count {
        let Ok(loglet) = open(&env, LogletId(u128::from(n) + 1), &projection) else {
            all.errors += 1;
            continue;
        };
        match seal_one(&loglet, || env.now()).await {
            Some((began, ended)) => {
                all.add(ended.since(began));
                all.busy += ended.since(began);
            }
            None => all.errors += 1,
        }
    }
    all
}

/// Measures all numbers of units. Returns whether no seal failed.
pub async fn run(args: &SealArgs, place: &Folder) -> Result<bool, Error> {
    let shape = ShapeArgs::with_parameters(args.seal_parameters.clone(), place.folder.clone());
    let parameters = shape.parameters().await?;
    let counts: Vec<u32> = REAL.into_iter().filter(|units| *units <= args.real_units).collect();
    let most = counts.last().copied().unwrap_or(0);
    let mut fine = true;
    if most > 0 {
        let nodes = Nodes::start(most + 1, 0, &place.folder).await?;
        for units in counts {
            let chains: Vec<Vec<u32>> = (1..=units).map(|unit| vec![unit]).collect();
            let projection = nodes.projection(most + 1, &chains).await?;
            let seals = seal_real(nodes.env().clone(), units, projection, args.seals);
            let all = nodes.run(seals).await?.map_err(failed)?;
            let settings = json!({"kind": "real", "units_of_a_chain": 1, "load_1m": load_1m()});
            let mut line = all.line("CORFU", "seal", 1, &settings);
            line["units"] = json!(units);
            print(&line)?;
            fine &= all.errors == 0;
        }
        nodes.stop().await;
    }
    for units in MODELLED {
        let mut cluster = Modelled::new(&parameters, (units, 1, 1), shape.seed, None);
        let Some(env) = cluster.clients().pop() else { continue };
        let mut seals =
            env.launch("seals", seal_modelled(env.clone(), cluster.projection.clone(), args.seals));
        cluster.model.run_until(MODEL_MS * 1_000_000);
        let all = match seals.try_take() {
            Some(Ok(all)) => all,
            _ => return Err(failed("the modelled seals have not ended in time")),
        };
        let settings = json!({"kind": "modelled", "units_of_a_chain": 1, "parameters": parameters.to_json()});
        let mut line = all.line("CORFU", "seal", 1, &settings);
        line["units"] = json!(units);
        print(&line)?;
        fine &= all.errors == 0;
    }
    Ok(fine)
}
