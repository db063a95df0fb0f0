//! Directed: the registers of a single node, in one file that is replaced as a whole. The node dies repeatedly. Some replacements fail and
//! leave the old or the new content. Before each life, a damaged copy is opened, which must be refused.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{NodeCore, roles};
use atoll_file_register::{Cell, CellError, FileRegisters};
use bytes::Bytes;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::parts::{WhoAmI, identity};
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::register::{self as load, HasRegisters};
use crate::world::fault::{Death, Fault};
use crate::world::observer::Who;
use crate::world::{Assembly, Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "file-registers",
    about: "directed: the registers of a single node in one file: deaths, replacements that fail, damaged copies",
    run,
    marks: &[&[
        "sim.file_registers.damage_refused",
        "sim.file_registers.failed_with_new",
        "sim.file_registers.failed_with_old",
        "sim.file_registers.opened_again",
    ]],
    full: false,
};

/// One of this many replacements fails.
const FAILS_ONE_IN: u64 = 40;

#[derive(Debug)]
struct Disk {
    content: Option<Bytes>,
    rng: Rng,
    /// Whether replacements no longer fail.
    healed: bool,
    /// Whether a replacement has failed in this life.
    failed: bool,
}

/// The content of the file, which all cells that opened it share.
#[derive(Clone, Debug)]
struct FileDisk(Arc<Mutex<Disk>>);

impl FileDisk {
    fn with<T>(&self, f: impl FnOnce(&mut Disk) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Cell for FileDisk {
    fn load(&self) -> Result<Option<Bytes>, CellError> {
        Ok(self.with(|disk| disk.content.clone()))
    }

    fn replace(&mut self, content: &[u8]) -> Result<(), CellError> {
        self.with(|disk| {
            if disk.healed || disk.rng.below(FAILS_ONE_IN) > 0 {
                disk.content = Some(Bytes::copy_from_slice(content));
                return Ok(());
            }
            disk.failed = true;
            // The rename may or may not have happened, and the caller cannot tell.
            if disk.rng.below(2) == 0 {
                disk.content = Some(Bytes::copy_from_slice(content));
                hit("sim.file_registers.failed_with_new");
            } else {
                hit("sim.file_registers.failed_with_old");
            }
            Err(CellError {
                path: "registers".into(),
                doing: "sync folder",
                error: std::io::ErrorKind::Other.into(),
            })
        })
    }
}

/// A content that cannot be replaced.
struct Fixed(Bytes);

impl Cell for Fixed {
    fn load(&self) -> Result<Option<Bytes>, CellError> {
        Ok(Some(self.0.clone()))
    }

    fn replace(&mut self, _content: &[u8]) -> Result<(), CellError> {
        Err(CellError {
            path: "registers".into(),
            doing: "replace",
            error: std::io::ErrorKind::PermissionDenied.into(),
        })
    }
}

/// What clients use on the node.
#[derive(Clone, Debug)]
struct Handles(FileRegisters);

impl HasRegisters for Handles {
    type Registers = FileRegisters;

    fn registers(&self) -> &FileRegisters {
        &self.0
    }
}

/// A node that has only these registers.
struct Alone {
    disk: FileDisk,
    /// Violations, such as a damaged copy that was opened.
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Alone {
    /// Opens a copy that is truncated or has one flipped bit, which must fail.
    fn open_damaged(&self) {
        let Some(content) = self.disk.with(|disk| disk.content.clone()) else { return };
        let mut copy = content.to_vec();
        let at = self.disk.with(|disk| disk.rng.below(copy.len() as u64)) as usize;
        let cut = self.disk.with(|disk| disk.rng.below(2)) == 0;
        if cut {
            copy.truncate(at);
        } else {
            copy[at] ^= 1 << self.disk.with(|disk| disk.rng.below(8));
        }
        match FileRegisters::open(Box::new(Fixed(copy.into()))) {
            Err(_) => hit("sim.file_registers.damage_refused"),
            Ok(_) => {
                let words = format!(
                    "FILE: a content of {} bytes, damaged at {at} (cut: {cut}), was opened",
                    content.len()
                );
                self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(words);
            }
        }
    }
}

impl Assembly for Alone {
    type Handles = Handles;

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, Handles) {
        self.open_damaged();
        self.disk.with(|disk| disk.failed = false);
        let mut core = NodeCore::new(who.node, who.incarnation, seed);
        core.add_role(roles::MEMBER, Box::new(WhoAmI(identity(who))));
        let registers = match FileRegisters::open(Box::new(self.disk.clone())) {
            Ok(registers) => registers,
            Err(error) => {
                let words = format!("FILE: what was written cannot be opened: {error}");
                self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(words);
                // The violation fails the run. Until then, the node uses empty registers in memory.
                FileRegisters::open(Box::new(FileDisk(Arc::new(Mutex::new(Disk {
                    content: None,
                    rng: Rng::new(seed),
                    healed: false,
                    failed: true,
                })))))
                .unwrap_or_else(|e| panic!("a file that was never written is opened: {e}"))
            }
        };
        (core, Handles(registers))
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6669_6c65);
    let disk = Disk { content: None, rng: rng.fork(), healed: false, failed: false };
    let disk = FileDisk(Arc::new(Mutex::new(disk)));
    let wrong = Arc::new(Mutex::new(Vec::new()));
    let assembly = Alone { disk: disk.clone(), wrong: wrong.clone() };
    let mut world = World::new(rng.bits(), 1, Weather::default(), assembly, out);
    let stage = stage(&mut world);
    let names: Vec<String> = (0..1 + rng.below(4)).map(|n| format!("r{n}")).collect();
    for _ in 0..4 {
        stage.spawn("client", load::client(stage.clone(), names.clone(), Duration::from_millis(5)));
    }
    stage.spawn("keeper", keeper(stage.clone(), disk.clone(), wrong));
    let menu = Menu { crash: 3, pause: 1, ..Menu::NONE };
    let faults =
        Faults { during: Duration::from_secs(10), ..Faults::usual(menu, Duration::from_millis(300)) };
    let demanding = stage.clone();
    let demand = async move {
        disk.with(|disk| disk.healed = true);
        load::progress(demanding, names).await;
    };
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Plays the operator: restarts a node after a replacement has failed.
async fn keeper(stage: Stage<Handles>, disk: FileDisk, wrong: Arc<Mutex<Vec<String>>>) {
    loop {
        stage.pause(Duration::from_millis(50)).await;
        for words in wrong.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            stage.cluster.fail(words);
        }
        if stage.cluster.host(0).is_some() && disk.with(|disk| disk.failed) {
            hit("sim.file_registers.opened_again");
            stage.cluster.inject(Fault::Crash { host: 0, death: Death::Kill, back_after: Some(1_000_000) });
        }
    }
}
